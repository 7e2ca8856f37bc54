//! The load: `wrk`, with objects by chance.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir_cli::child;

use super::watch::{Flow, received_bytes};

/// Connections that ask at once.
pub const CONNECTIONS: u32 = 32;
/// How long a run of the load may last beyond its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which objects are asked for.
pub const PATTERNS: [&str; 2] = ["random", "zipf"];

/// What `wrk` runs: the numbers are put in front. Ranks are strewn over the numbers, so that objects which
/// are asked for often are no neighbours.
const SCRIPT: &str = r#"
local total, steps = {}, 0
local counter = 0

function setup(thread)
    thread:set("id", counter)
    counter = counter + 1
end

function init(args)
    math.randomseed(1000 + id)
    if pattern == "zipf" then
        local sum = 0
        for rank = 1, objects do
            sum = sum + 1 / rank ^ 0.99
            total[rank] = sum
        end
    end
end

local function by_rank()
    local at = math.random() * total[objects]
    local low, high = 1, objects
    while low < high do
        local middle = math.floor((low + high) / 2)
        if total[middle] < at then low = middle + 1 else high = middle end
    end
    return (low * 7919) % objects
end

function request()
    local number = pattern == "zipf" and by_rank() or math.random(0, objects - 1)
    return wrk.format("GET", "/" .. number)
end

function done(summary, latency, requests)
    local errors = summary.errors
    local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
    io.write(string.format(
        '\n{"responses": %d, "bytes": %.0f, "seconds": %.6f, "failed": %d, "p50_ms": %.3f, ' ..
        '"p99_ms": %.3f, "p999_ms": %.3f, "max_ms": %.3f}\n',
        summary.requests, summary.bytes, summary.duration / 1e6, failed, latency:percentile(50) / 1e3,
        latency:percentile(99) / 1e3, latency:percentile(99.9) / 1e3, latency.max / 1e3))
end
"#;

/// A load on a server of so many objects.
#[derive(Debug)]
pub struct Load<'a> {
    /// The program, `wrk`.
    pub wrk: &'a Path,
    /// Where the script is written.
    pub folder: &'a Path,
    /// Where the server listens.
    pub server: SocketAddr,
    /// How many objects it has.
    pub objects: u64,
}

impl Load<'_> {
    /// Asks for objects for so many seconds. `each_poll` is called meanwhile.
    pub fn run(&self, pattern: &str, seconds: f64, mut each_poll: impl FnMut()) -> anyhow::Result<Value> {
        let script = self.folder.join("load.lua");
        let head = format!("local objects, pattern = {}, \"{pattern}\"\n", self.objects);
        std::fs::write(&script, head + SCRIPT).with_context(|| script.display().to_string())?;
        let mut command = Command::new(self.wrk);
        command.args(["--threads", "1", "--timeout", "30s", "--connections", &CONNECTIONS.to_string()]);
        command.args(["--duration", &format!("{}s", seconds.ceil()), "--script"]).arg(&script);
        command.arg(format!("http://{}/", self.server));
        let mut flow = Flow::default();
        let deadline = Duration::from_secs_f64(seconds) + PATIENCE;
        let finished = child::run(&mut command, deadline, |pid| {
            flow.look(received_bytes(pid).unwrap_or(0), Instant::now());
            each_poll();
        })?;
        let line = finished.stdout.lines().last().unwrap_or_default();
        let mut found: Value = serde_json::from_str(line)
            .with_context(|| format!("unexpected output of wrk: {:?}", finished.stdout))?;
        ensure!(found["failed"] == 0, "requests failed: {line}");
        if found["responses"] == 0 {
            for field in ["p50_ms", "p99_ms", "p999_ms", "max_ms"] {
                found[field] = Value::Null;
            }
        }
        let number = |field: &str| found[field].as_f64().unwrap_or(0.0);
        let gbit = number("bytes") * 8.0 / 1e9 / number("seconds").max(1e-9);
        found["gbit_per_s"] = json!(gbit);
        found["longest_pause_ms"] = json!(flow.longest_pause().as_secs_f64() * 1e3);
        found["empty_seconds"] = json!(flow.empty_seconds());
        found["slowest_second_percent"] = json!(flow.slowest_second_percent());
        Ok(found)
    }
}
