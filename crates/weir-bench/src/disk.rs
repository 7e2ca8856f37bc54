//! What the scenarios with a swap file share: Weir's options, the kernel's side, and what went to the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use weir::config::{MEMORY_BYTES_MIN, format_size, parse_size};
use weir_cli::compare::rival::{Area, Rival};
use weir_cli::compare::sides::{Job, RivalOutcome};
use weir_cli::term;
use weir_os::probe;

use super::RIVAL_ATTEMPTS;
use crate::cli::DiskArgs;

const PAGE_BYTES: f64 = 4096.0;
/// A swap file is a bit larger than the data: nothing may fall back to another swap area, and Weir keeps one
/// cluster for moving records.
const SWAP_SLACK_BYTES: u64 = 64 << 20;
/// Share of the budget for compressed pages where the swap file is what is measured.
pub const SMALL_POOL_PERCENT: u8 = 5;

/// Where the sides swap, and how much.
#[derive(Debug)]
pub struct Disk {
    /// Folder of the swap files.
    pub dir: PathBuf,
    /// Bytes of the swap files.
    pub swap_bytes: u64,
    /// Weir's `--pool-max`.
    pub pool_max: u8,
}

impl Disk {
    /// For so many bytes of data. `pool_max` counts where the user names none.
    pub fn new(args: &DiskArgs, data: u64, pool_max: u8) -> anyhow::Result<Disk> {
        let dir = std::path::absolute(&args.dir).with_context(|| format!("--dir {}", args.dir.display()))?;
        let swap_bytes = data.checked_add(SWAP_SLACK_BYTES).context("--size is too large")?;
        Ok(Disk { dir, swap_bytes, pool_max: args.pool_max.unwrap_or(pool_max) })
    }

    /// Options of `weir run`, and some more.
    pub fn options<'a>(&self, more: &[(&'a str, String)]) -> Vec<(&'a str, String)> {
        let swap = format!("{}:{}", self.dir.display(), self.swap_bytes);
        let mut options = vec![("swap", swap), ("pool-max", self.pool_max.to_string())];
        options.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
        options.extend(more.iter().cloned());
        options
    }

    /// One run under the kernel's swap, which is set up for it and put back after it: there can be one at a
    /// time.
    pub fn run_rival(&self, area: Area, limit: u64, job: &Job) -> anyhow::Result<(String, RivalOutcome)> {
        let rival = Rival::set_up(area, limit, self.swap_bytes)?;
        Ok((rival.description.clone(), job.run_rival(&rival, RIVAL_ATTEMPTS)?))
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// The RAM limit of a scenario, in bytes.
pub fn limit(size: Option<&str>, default: &str) -> anyhow::Result<u64> {
    let size = size.unwrap_or(default);
    let limit = parse_size(size, probe::ram_limit_bytes()).with_context(|| format!("--size {size}"))?;
    anyhow::ensure!(
        limit >= MEMORY_BYTES_MIN,
        "--size {size}: the least is {}",
        format_size(MEMORY_BYTES_MIN)
    );
    anyhow::ensure!(limit <= 1 << 40, "--size {size} is too large");
    Ok(limit)
}

/// Keeps a rival that can be had; the first failure becomes a note, and further runs go without.
pub fn or_note(
    result: anyhow::Result<(String, RivalOutcome)>,
    what: &str,
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<(String, RivalOutcome)>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(e) if weir_cli::interrupt::interrupted() => Err(e),
        Err(e) => {
            let note = format!("without {what}: {e:#}");
            term::progress(&note);
            notes.push(note);
            Ok(None)
        }
    }
}

/// Bytes and requests of Weir's swap file, from its counters.
pub fn traffic(counters: &BTreeMap<String, u64>) -> Value {
    let get = |key: &str| counters.get(key).copied().unwrap_or(0) as f64;
    let per = |a: f64, b: f64| (b > 0.0).then_some(a / b);
    let (pages_out, pages_in) = (get("pswpout"), get("pswpin"));
    let (writes, reads) = (get("weir_swap_writes"), get("weir_swap_reads"));
    let (written, read) = (get("weir_swap_bytes_written"), get("weir_swap_bytes_read"));
    json!({
        "pages_out": pages_out, "pages_in": pages_in,
        "clean_pages_out": get("weir_swap_clean"), "cancelled_pages": get("weir_swap_cancelled"),
        "bytes_written": written, "bytes_read": read,
        "bytes_written_per_byte_evicted": per(written, pages_out * PAGE_BYTES),
        "write_requests_per_page": per(writes, pages_out), "read_requests_per_page": per(reads, pages_in),
        "write_request_bytes": per(written, writes), "read_request_bytes": per(read, reads),
        "slot_trips_per_page": per(get("weir_swap_slot_trips"), pages_out),
        "unmap_calls_per_page": per(get("weir_unmap_calls"), get("weir_pages_unmapped")),
    })
}

/// What the kernel reads ahead at most on the disk of a folder.
pub fn readahead_kib(folder: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(folder).ok()?.dev();
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
    let text = std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).ok()?;
    text.trim().parse().ok()
}

/// Lines of a report that say what the kernel's side was and which RAM it had; none without that side.
pub fn rival_lines(report: &Value) -> String {
    let Some(rival) = report["rival"].as_str() else { return String::new() };
    let (limit, store) = (size(&report["limit_bytes"]), size(&report["store_peak_bytes"]));
    format!("kernel: {rival}\nkernel RAM: {limit} limit + {store} store\n")
}

/// `12.3 KiB`, or a dash.
pub fn size(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), |bytes| format_size(bytes as u64))
}

/// A number with three digits, or a dash.
pub fn number(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), |v| match v {
        v if v < 0.1 && v > 0.0 => format!("{v:.4}"),
        v => weir_cli::compare::table::short(v),
    })
}

/// How many times, or a dash.
pub fn times(value: &Value) -> String {
    value.as_f64().map_or("-".to_owned(), |v| format!("{}x", weir_cli::compare::table::short(v)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> DiskArgs {
        DiskArgs { dir: "/disk".into(), pool_max: None }
    }

    #[test]
    fn options_given_later_replace_the_scenarios_own() {
        let disk = Disk::new(&args(), 1 << 20, 5).unwrap();
        let options = disk.options(&[("pool-max", "90".to_owned()), ("swap-batch", "1".to_owned())]);
        let size = (1 << 20) + SWAP_SLACK_BYTES;
        let wanted =
            [("swap", format!("/disk:{size}")), ("pool-max", "90".into()), ("swap-batch", "1".into())];
        assert_eq!(options, wanted);
    }

    #[test]
    fn traffic_is_per_page_and_nothing_where_nothing_was_written() {
        let counters = [
            ("pswpout", 100),
            ("weir_swap_writes", 2),
            ("weir_swap_bytes_written", 204_800),
            ("weir_swap_slot_trips", 4),
        ];
        let counters = counters.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
        let found = traffic(&counters);
        assert_eq!(found["bytes_written_per_byte_evicted"], 0.5);
        assert_eq!(
            (found["write_requests_per_page"].as_f64(), found["write_request_bytes"].as_f64()),
            (Some(0.02), Some(102_400.0))
        );
        assert!(found["read_requests_per_page"].is_null());
        assert_eq!(number(&found["slot_trips_per_page"]), "0.0400");
    }

    #[test]
    fn limits_outside_reason_are_refused() {
        for bad in ["1M", "15E", "lots"] {
            assert!(limit(Some(bad), "64M").is_err(), "{bad}");
        }
        assert_eq!(limit(None, "64M").unwrap(), 64 << 20);
    }
}
