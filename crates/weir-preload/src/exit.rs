//! At exit: the summary line and the statistics file.

use crate::state;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::fmt::Write as _;
use weir::config::Settings;
use weir_os::{fds, sys};

/// The process that loaded the shim (not a child forked from it).
static OWNER: AtomicU32 = AtomicU32::new(0);
static STDERR: AtomicI32 = AtomicI32::new(-1);

pub fn configure(_settings: &Settings) {
    OWNER.store(sys::getpid(), Ordering::Relaxed);
}

/// Keeps a way to the terminal: many programs close stderr (through libc, where no hook sees it)
/// before the destructors run.
pub fn engine_started() {
    if state::settings().is_some_and(|s| !s.quiet) {
        STDERR.store(fds::keep_duplicate(2).unwrap_or(-1), Ordering::Relaxed);
    }
}

/// In a forked child: its parent's reader must not wait for us.
pub fn forked() {
    let fd = STDERR.swap(-1, Ordering::Relaxed);
    fds::close(fd);
}

/// Shared memory of the process in RAM (`RssShmem`), which is not in the budget: relatives may have it as
/// well.
fn shared_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    line.and_then(|v| v.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Prints the summary, unless this is a forked child or the engine never started, and writes the
/// statistics.
pub fn at_exit() {
    let (Some(engine), Some(settings)) = (state::engine(), state::settings()) else { return };
    engine.core.publish();
    engine.last_look_outside();
    engine.check_descriptors();
    engine.depart();
    let pid = sys::getpid();
    let own = OWNER.load(Ordering::Relaxed) == pid;
    if let Some(path) = &settings.stats {
        let path = path.to_string_lossy();
        if own || path.contains("%p") {
            write_stats(engine, &path.replace("%p", &pid.to_string()));
        }
    }
    if own && !settings.quiet {
        let fd = STDERR.load(Ordering::Relaxed);
        // One that the program has closed past libc may name a file of its own.
        if fds::is_intact(fd) {
            let _ = sys::write_all(fd, summary(engine, settings).as_bytes());
        }
    }
}

fn summary(engine: &state::Weir, settings: &Settings) -> String {
    let s = &engine.core.stats;
    let get = |a: &core::sync::atomic::AtomicU64| a.load(Ordering::Relaxed);
    let mib = |b: u64| b as f64 / (1 << 20) as f64;
    let us = |ns: u64| ns as f64 / 1000.0;
    let (logical, stored) = (s.pool_logical_bytes().get(), s.pool_stored_bytes().get());
    let ratio =
        if stored > 0 { format!("{:.2}:1", logical as f64 / stored as f64) } else { "empty now".into() };
    let swap = match &engine.core.swapping {
        None => "none".into(),
        Some(swapping) => {
            let c = swapping.tier.counters();
            format!(
                "{:.0} MiB written and {:.0} MiB read of {:.0} MiB",
                mib(get(&c.bytes_written)),
                mib(get(&c.bytes_read)),
                mib(swapping.tier.bytes())
            )
        }
    };
    // A little is always there: libraries, small tables.
    let shared = match mib(shared_bytes()) {
        much if much >= 1.0 => format!("; {much:.0} MiB of shared memory besides"),
        _ => String::new(),
    };
    format!(
        "weir: peak {:.0} MiB of RAM in a budget of {:.0} MiB, outside Weir up to {:.0} MiB{shared}; {:.0} MiB managed; \
         {} faults, p50 {:.1} us, p99 {:.1} us; {} pages compressed, pool {ratio}; swap {swap}\n",
        mib(get(&s.total_bytes_peak)),
        mib(settings.memory),
        mib(get(&s.outside_bytes_peak)),
        mib(get(&s.managed_bytes_peak)),
        s.faults().get(),
        us(s.fault_quantile(0.5)),
        us(s.fault_quantile(0.99)),
        s.pool_out().get(),
    )
}

fn write_stats(engine: &state::Weir, path: &str) {
    let mut text = String::new();
    engine.core.stats.each(|key, value| {
        let _ = writeln!(text, "{key} {value}");
    });
    if let Some(swapping) = &engine.core.swapping {
        swapping.tier.counters().each(|key, value| {
            if key.starts_with("weir_") {
                let _ = writeln!(text, "{key} {value}");
            }
        });
    }
    let (space, space_len) = engine.space();
    let _ = writeln!(text, "weir_shared_bytes {}", shared_bytes());
    let _ = writeln!(text, "weir_space_start {space}\nweir_space_bytes {space_len}");
    if std::fs::write(path, text).is_err() {
        weir::engine::threads::say(format_args!("cannot write statistics to {path}"));
    }
}
