//! A budget that is a share of what surrounds the process: the limit of its control groups, or the machine's
//! RAM. The limit may change while the program runs: the background thread reads it again now and then, and
//! the budget follows, up to what the engine was made for.

pub mod followed;

use super::Engine;
use super::say::say;
use crate::config::{Settings, parse_size};
use crate::door::Pager;
use crate::sync::Ordering;
use followed::Followed;
use weir_os::pager::KernelPager;
use weir_os::probe;

impl Engine<KernelPager> {
    /// Begins to follow the limit, if the budget is a share of it. A pool's budget is its program's business,
    /// that of a tree the business of all its processes.
    pub(super) fn watch_limit(&self, settings: &Settings) {
        let Some(share) = settings.share.as_ref().filter(|_| !settings.embedded && !settings.per_tree) else {
            return;
        };
        let Some(limits) = probe::Around::open() else { return };
        let tells = settings.verbose && !settings.quiet;
        let _ = self.around.followed.set(Followed { limits, share: share.clone(), tells });
    }
}

impl<P: Pager> Engine<P> {
    /// Reads the limit again if it is time. Inside the gate.
    pub(super) fn follow_limit(&self, now_ns: u64) {
        let Some((limit, followed)) = self.around.news(now_ns) else { return };
        let (core, before) = (&self.core, self.core.ledger.budget_bytes());
        core.stats.limit_around_bytes.store(limit, Ordering::Relaxed);
        let Ok(bytes) = parse_size(&followed.share, limit) else { return };
        core.set_budget(bytes);
        let after = core.ledger.budget_bytes();
        if after != before && followed.tells {
            say(format_args!(
                "the limit around this process is {} MiB now: its budget is {} MiB, and was {} MiB",
                limit >> 20,
                after >> 20,
                before >> 20,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::followed::LOOK_NS;
    use super::*;
    use crate::sim::World;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_budget_follows_the_limit_down_and_up_to_the_start_until_somebody_names_a_size() {
        let file = std::env::temp_dir().join(format!("weir-limit-{}", std::process::id()));
        let set = |text: &str| std::fs::write(&file, text).unwrap();
        set("134217728\n");
        let engine = Engine::new(World::budget(64).core(), 0);
        let limits = probe::Around::over(vec![file.clone()], 1 << 40).unwrap();
        let followed = Followed { limits, share: "50%".to_owned(), tells: false };
        engine.around.followed.set(followed).unwrap();
        let mut now = 1;
        let mut look = |limit: &str, after: u64| {
            set(limit);
            now += after;
            engine.follow_limit(now);
            let around = engine.core.stats.limit_around_bytes.load(Ordering::Relaxed);
            (engine.core.ledger.budget_bytes() / MIB, around / MIB)
        };
        assert_eq!(look("134217728\n", 0), (64, 128), "as at the start");
        assert_eq!(look("67108864\n", LOOK_NS - 1), (64, 128), "not yet");
        assert_eq!(look("67108864\n", 1), (32, 64));
        assert_eq!(look("100663296\n", LOOK_NS), (48, 96));
        assert_eq!(look("", LOOK_NS), (48, 96), "nobody knows");
        assert_eq!(look("268435456\n", LOOK_NS), (64, 256), "no more than at the start");
        assert_eq!(look("4096\n", LOOK_NS), (8, 0), "no less than the least");
        assert_eq!(look("max\n", LOOK_NS), (64, 1 << 20));
        engine.around.leave();
        assert_eq!(look("67108864\n", LOOK_NS), (64, 1 << 20), "a size was named");
        engine.core.validate(1024).unwrap();
        std::fs::remove_file(&file).unwrap();
    }
}
