//! `weir config`: the settings in force, and where each comes from.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::json;
use weir::config::OPTIONS;
use weir_cli::term;

use crate::cli::{ConfigArgs, SettingFlags};
use crate::settings::Layers;

/// Prints every setting.
pub fn config(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let layers = Layers::read(&SettingFlags::default())?;
    let settings = layers.settings()?;
    let shown = OPTIONS
        .iter()
        .filter(|option| !option.hidden || layers.value(option).1 != crate::settings::Origin::Default);
    if args.json {
        let entries = shown.map(|option| {
            let (value, origin) = layers.value(option);
            (option.name.to_owned(), json!({ "value": value, "origin": origin.to_string() }))
        });
        let mut object: serde_json::Map<String, serde_json::Value> = entries.collect();
        if let Some(memory) = object.get_mut("memory") {
            memory["bytes"] = json!(settings.memory);
        }
        term::print(&format!("{:#}\n", serde_json::Value::Object(object)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for option in shown {
        let (mut value, origin) = layers.value(option);
        if option.is_switch() && value.is_empty() {
            value = "0".to_owned();
        }
        let value = if value.is_empty() { "-".to_owned() } else { value };
        if args.show_origin {
            writeln!(text, "{:<16} {value:<12} {origin}", option.name)?;
        } else {
            writeln!(text, "{:<16} {value}", option.name)?;
        }
    }
    term::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
