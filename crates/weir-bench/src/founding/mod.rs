//! `weir bench founding`: the experiments of the reports that Weir was founded on, with the mechanism off and
//! on in one run.

mod f1;
mod f2;
mod f3;
mod f4;
mod f5;

pub use f3::SERVER_SIDES;
use weir_cli::compare::sides::{Job, weir_missing};

use std::time::Duration;

use serde_json::Value;
use weir_os::probe::{self, FaultMode};

use super::Findings;
use super::disk::{self, Disk};
use crate::cli::{Experiment, FoundingArgs, FoundingRunArgs};
use crate::workload;

/// Runs an experiment.
pub fn founding(args: &FoundingArgs) -> anyhow::Result<Findings> {
    match &args.experiment {
        Experiment::F1(args) => Ok(Findings::new(f1::run(args)?, args.sized.common.json, f1::human)),
        Experiment::F2(args) => Ok(Findings::new(f2::run(args)?, args.sized.common.json, f2::human)),
        Experiment::F3(args) => Ok(Findings::new(f3::run(args)?, args.run.sized.common.json, f3::human)),
        Experiment::F4(args) => Ok(Findings::new(f4::run(args)?, args.sized.common.json, f4::human)),
        Experiment::F5(args) => Ok(Findings::new(f5::run(args)?, args.sized.common.json, f5::human)),
    }
}

/// One figure in terms of another that is not nothing.
pub(super) fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).filter(|(_, b)| *b > 0.0).map(|(a, b)| a / b)
}

/// What the experiments share.
struct Plan {
    /// RAM: Weir's budget and the kernel's limit, in bytes.
    limit: u64,
    runs: u32,
    seconds: f64,
    faults: Option<FaultMode>,
    disk: Disk,
}

impl Plan {
    /// For up to `data_percent` of the RAM.
    fn new(args: &FoundingRunArgs, data_percent: u64, pool_max: u8) -> anyhow::Result<Plan> {
        if let Some(why) = weir_missing() {
            anyhow::bail!("{why}");
        }
        let limit = args.sized.limit(128)?;
        Ok(Plan {
            limit,
            runs: args.sized.common.runs(),
            seconds: args.sized.seconds(3.0)?,
            faults: probe::probe().auto_faults(),
            disk: Disk::new(&args.disk, limit * data_percent / 100, pool_max)?,
        })
    }

    /// The plain program over data of so many percent of the RAM.
    fn job(&self, phases: &str, data_percent: u64, deadline: Duration) -> anyhow::Result<Job> {
        let (bytes, seconds) = ((self.limit * data_percent / 100).to_string(), self.seconds.to_string());
        workload::job(&[phases, "--bytes", &bytes, "--seconds", &seconds], deadline)
    }

    /// First lines of a report.
    fn title(report: &Value, what: &str) -> String {
        format!(
            "{what}; medians of {} run(s), Linux {}\nweir: faults {}, {} RAM, pool at most {} %; files in {}\n",
            report["repeats"].as_u64().unwrap_or(0),
            report["kernel"].as_str().unwrap_or("?"),
            report["faults"].as_str().unwrap_or("?"),
            disk::size(&report["limit_bytes"]),
            report["pool_max_percent"],
            report["swap_dir"].as_str().unwrap_or("?"),
        )
    }

    fn common_json(&self, experiment: &str) -> Value {
        serde_json::json!({
            "scenario": format!("founding {experiment}"),
            "kernel": probe::probe().kernel.release,
            "faults": self.faults.map(FaultMode::name),
            "limit_bytes": self.limit,
            "repeats": self.runs,
            "swap_dir": self.disk.dir(),
            "pool_max_percent": self.disk.pool_max,
            "seconds": self.seconds,
        })
    }
}
