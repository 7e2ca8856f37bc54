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

/// RAM of the process outside Weir: code, stacks, memory taken before the engine ran.
fn unmanaged_bytes(managed: u64) -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|v| v.parse().ok()).unwrap_or(0);
    (pages * 4096).saturating_sub(managed)
}

/// Prints the summary, unless this is a forked child or the engine never started, and writes the
/// statistics.
pub fn at_exit() {
    let (Some(engine), Some(settings)) = (state::engine(), state::settings()) else { return };
    engine.core.publish();
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
    format!(
        "weir: peak {:.0} MiB managed in a budget of {:.0} MiB; {} faults, p50 {:.1} us, p99 {:.1} us; \
         {} pages compressed, pool {ratio}; swap {swap}; {:.0} MiB outside\n",
        mib(get(&s.managed_bytes_peak)),
        mib(settings.memory),
        s.faults().get(),
        us(s.fault_quantile(0.5)),
        us(s.fault_quantile(0.99)),
        s.pool_out().get(),
        mib(unmanaged_bytes(engine.core.resident_bytes())),
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
    let outside = unmanaged_bytes(engine.core.resident_bytes());
    let _ = writeln!(text, "weir_unmanaged_bytes {outside}");
    let _ = writeln!(text, "weir_space_start {space}\nweir_space_bytes {space_len}");
    if std::fs::write(path, text).is_err() {
        weir::engine::threads::say(format_args!("cannot write statistics to {path}"));
    }
}
