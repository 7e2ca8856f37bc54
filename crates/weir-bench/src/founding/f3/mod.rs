//! F3, TLB flush batching, in two halves: memory in the compressed pool, unmapped page by page or in batches
//! (`memory.rs`), and what the report was about, a cache server that maps a file larger than the RAM
//! (`server.rs`).

mod backend;
mod load;
mod memory;
mod server;
mod varnish;
mod watch;

pub use server::KEYS as SERVER_SIDES;
pub use watch::of_weir;

use serde_json::{Value, json};
use weir_cli::term;

use crate::cli::F3Args;

/// Measures both halves, or the one that is asked for. A server that is not installed is a note, unless it is
/// what was asked for.
pub fn run(args: &F3Args) -> anyhow::Result<Value> {
    let half = args.half.as_deref();
    let mut report = match half {
        Some("server") => json!({ "scenario": "founding f3" }),
        _ => memory::run(&args.run)?,
    };
    if half != Some("memory") {
        let tools = match varnish::Tools::find() {
            Err(e) if half.is_none() => {
                term::progress(&format!("without the cache server: {e:#}"));
                report["notes"] = json!([format!("without the cache server: {e:#}")]);
                return Ok(report);
            }
            tools => tools?,
        };
        report["server"] = server::run(args, &tools)?;
    }
    Ok(report)
}

/// The tables of both halves.
pub fn human(report: &Value) -> String {
    let memory = report["rows"].is_array().then(|| memory::human(report));
    let server = report["server"].is_object().then(|| server::human(&report["server"]));
    let notes = report["notes"].as_array().into_iter().flatten();
    let notes: String = notes.filter_map(Value::as_str).map(|note| format!("note: {note}\n")).collect();
    memory.into_iter().chain(server).collect::<Vec<_>>().join("\n") + &notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_that_was_not_measured_is_not_shown_and_notes_are() {
        let text = human(&json!({ "rows": [], "notes": ["without the cache server: no wrk"] }));
        assert!(text.contains("pages per second") && text.contains("no wrk"), "{text}");
        assert!(!text.contains("Gbit/s"), "{text}");
        let text = human(&json!({ "server": { "rows": [] } }));
        assert!(text.contains("Gbit/s") && !text.contains("pages per second"), "{text}");
    }
}
