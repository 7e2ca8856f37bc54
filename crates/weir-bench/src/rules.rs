//! `weir bench rules`: the rules that an experiment can leave out.

use serde_json::{Value, json};
use weir::config::rules::{Kind, Rule};
use weir_cli::compare::table;

use crate::Findings;
use crate::cli::JsonArgs;

/// Whether this build can leave rules out.
pub const CAN_LEAVE_OUT: bool = cfg!(feature = "experiments");

/// Lists all the rules.
pub fn rules(args: &JsonArgs) -> Findings {
    let rows: Vec<Value> = Rule::ALL
        .iter()
        .map(|rule| json!({ "rule": rule.name(), "loop": rule.kind() == Kind::Loop, "off": rule.off() }))
        .collect();
    let report = json!({ "scenario": "rules", "can_leave_out": CAN_LEAVE_OUT, "rows": rows });
    Findings::new(report, args.json, human)
}

fn human(report: &Value) -> String {
    let rows = report["rows"].as_array().into_iter().flatten();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let lines: Vec<Vec<String>> = rows
        .map(|row| {
            let kind = if row["loop"] == true { "loop" } else { "" };
            vec![text(row, "rule"), text(row, "off"), kind.to_owned()]
        })
        .collect();
    let build = if CAN_LEAVE_OUT {
        "WEIR_RULES_OFF=RULE,RULE leaves them out."
    } else {
        "This build cannot leave them out; one with the feature `experiments` can."
    };
    format!("{}\n{build}\n", table::render(&["rule", "without it", ""], &lines))
}
