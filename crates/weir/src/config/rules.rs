//! The rules that decide, one by one, so that an experiment can leave each of them out.
//!
//! A rule that gains nothing anywhere has to go. A build with the feature `experiments` leaves out the rules
//! that `WEIR_RULES_OFF` names, and does the simplest thing instead. In every other build the compiler knows
//! that all rules are on, so [`is_on`] costs nothing there.

use core::str::FromStr;

/// Whether a rule looks at what came of its own decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It decides by what is there.
    Plain,
    /// A feedback loop: it measures what it does.
    Loop,
}

macro_rules! rules {
    ($($rule:ident $name:literal $kind:ident $off:literal,)*) => {
        /// A rule. Its comment says what is done where it is left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $(#[doc = $off] $rule,)*
        }

        impl Rule {
            /// All the rules.
            pub const ALL: &[Rule] = &[$(Rule::$rule,)*];

            /// The name in `WEIR_RULES_OFF`.
            pub const fn name(self) -> &'static str {
                match self { $(Rule::$rule => $name,)* }
            }

            /// What is done where it is left out.
            pub const fn off(self) -> &'static str {
                match self { $(Rule::$rule => $off,)* }
            }

            /// Whether it is a feedback loop.
            pub const fn kind(self) -> Kind {
                match self { $(Rule::$rule => Kind::$kind,)* }
            }
        }
    };
}

rules! {
    // Readahead.
    Streams "streams" Plain "A fault brings its page alone and nothing runs ahead.",
    RunAhead "run-ahead" Plain "A stream brings pages of the block that faults alone.",
    PassOver "pass-over" Plain "A stream ends at a page that is there already.",
    Restart "restart" Plain "A walk that begins where an earlier one began starts with one page.",
    WholeBlocks "whole-blocks" Plain "First touches follow streams, also while nothing was ever reclaimed.",
    SwapReadahead "swap-readahead" Plain "A fault on a page in the swap file brings that page alone.",
    Strides "strides" Plain "Larger strides are not followed.",
    Spans "spans" Plain "Blocks of first touches come one by one.",
    TwoBlocks "two-blocks" Plain "Blocks of the pool come one by one.",
    // Loads.
    Loads "loads" Plain "Every fault brings its page: no load is answered.",
    SiteScores "site-scores" Loop "Every instruction that loads is answered.",
    VictimTime "victim-time" Loop "A page comes in when it is wanted a second time.",
    BringSome "bring-some" Plain "A load is answered, however many pages the table may have missed.",
    // Victims.
    Probation "probation" Plain "All blocks enter one queue.",
    References "references" Plain "The oldest block is the victim, whatever came back of it.",
    RefaultSoon "refault-soon" Plain "A block that comes back soon counts as a new one.",
    LeftOver "left-over" Plain "What was never out stays while all else comes back.",
    StagedShare "staged-share" Plain "As many pages are staged as have to go now: no second chance.",
    LiftNeighbours "lift-neighbours" Plain "A victim's block leaves alone.",
    // Copies and tiers.
    KeptRecords "kept-records" Plain "A page that comes from the pool gives up its record.",
    KeptScore "kept-score" Loop "Records are kept without looking at whether they stay true.",
    KeptSlots "kept-slots" Plain "A page that comes from the swap file gives up its slot.",
    PoolSpare "pool-spare" Plain "An unchanged page of the swap file never goes to the pool.",
    StuckUntried "stuck-untried" Plain "Every page is compressed, also if it was in vain last time.",
    StuckSample "stuck-sample" Plain "All pages of a window are tried, however many were in vain.",
    Shuffle "shuffle" Plain "Arrays of numbers are compressed as all else is.",
    Recompress "recompress" Loop "Cold records stay as they are.",
    WriteThrough "write-through" Loop "The adaptive policy writes pool pages when their places are needed.",
    PoolSize "pool-size" Loop "The pool may have its largest share all the time.",
    // Room.
    Balance "balance" Plain "Memory gives way to mapped files, whether there is room for it or not.",
    FrameOrder "frame-order" Plain "Neighbouring pages get frames in no order.",
    SingleCopies "single-copies" Plain "Single pages get moved frames, as runs do.",
    WholeWindows "whole-windows" Plain "A stream takes frames in pieces where no window is whole.",
    OwnRoom "own-room" Plain "Single faults leave all reclaim to the background thread.",
    StreamRoom "stream-room" Plain "Streams leave all reclaim to the background thread.",
    Release "release" Plain "Faulting threads give no free frames back ahead of need.",
    Turns "turns" Plain "Threads that fault do not take turns.",
}

/// Some of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules(u64);

const _: () = assert!(Rule::ALL.len() <= u64::BITS as usize);

impl Rules {
    /// With another rule.
    pub const fn with(self, rule: Rule) -> Rules {
        Rules(self.0 | 1 << rule as u32)
    }

    /// Whether the rule is among them.
    pub const fn has(self, rule: Rule) -> bool {
        self.0 >> rule as u32 & 1 == 1
    }
}

impl FromStr for Rules {
    type Err = String;

    /// Names with commas between them; nothing stands for none.
    fn from_str(text: &str) -> Result<Rules, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.into_iter().try_fold(Rules::default(), |rules, name| {
            match Rule::ALL.iter().find(|rule| rule.name() == name) {
                Some(rule) => Ok(rules.with(*rule)),
                None => {
                    let known: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
                    Err(format!("there is no rule '{name}'; there are: {}", known.join(", ")))
                }
            }
        })
    }
}

#[cfg(not(any(test, feature = "experiments")))]
mod switch {
    use crate::config::rules::{Rule, Rules};

    /// Whether the rule is on: always, in this build.
    #[inline(always)]
    pub const fn is_on(_rule: Rule) -> bool {
        true
    }

    /// Leaves nothing out in this build.
    pub fn leave_out(_rules: Rules) {}
}

#[cfg(all(feature = "experiments", not(test)))]
mod switch {
    use crate::config::rules::{Rule, Rules};
    use core::sync::atomic::{AtomicU64, Ordering};

    static OFF: AtomicU64 = AtomicU64::new(0);

    /// Whether the rule is on.
    #[inline]
    pub fn is_on(rule: Rule) -> bool {
        !Rules(OFF.load(Ordering::Relaxed)).has(rule)
    }

    /// Leaves these out from now on, in the whole process.
    pub fn leave_out(rules: Rules) {
        OFF.store(rules.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod switch {
    use crate::config::rules::{Rule, Rules};
    use std::cell::Cell;

    thread_local! {
        // Tests run at the same time: each has its own.
        static OFF: Cell<Rules> = const { Cell::new(Rules(0)) };
    }

    /// Whether the rule is on.
    pub fn is_on(rule: Rule) -> bool {
        !OFF.get().has(rule)
    }

    /// Leaves these out from now on, in this thread.
    pub fn leave_out(rules: Rules) {
        OFF.set(rules);
    }

    /// Does something without a rule.
    pub fn without<T>(rule: Rule, work: impl FnOnce() -> T) -> T {
        let before = OFF.replace(OFF.get().with(rule));
        let done = work();
        OFF.set(before);
        done
    }
}

#[cfg(test)]
pub use switch::without;
pub use switch::{is_on, leave_out};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_is_read_and_an_unknown_name_refused_with_all_that_there_are() {
        let rules: Rules = " loads, streams,,".parse().unwrap();
        assert_eq!(rules, Rules::default().with(Rule::Streams).with(Rule::Loads));
        assert!(rules.has(Rule::Loads) && !rules.has(Rule::Strides));
        assert_eq!("".parse(), Ok(Rules::default()));
        let refused = "streams,load".parse::<Rules>().unwrap_err();
        assert!(refused.contains("'load'") && refused.contains("two-blocks, loads"), "{refused}");
    }

    #[test]
    fn each_name_stands_for_one_rule_and_says_what_is_done_without_it() {
        for (i, rule) in Rule::ALL.iter().enumerate() {
            assert_eq!(*rule as usize, i);
            assert_eq!(rule.name().parse(), Ok(Rules::default().with(*rule)));
            assert!(rule.off().ends_with('.'), "{}", rule.name());
            assert!(Rule::ALL[..i].iter().all(|other| other.name() != rule.name()), "{}", rule.name());
        }
    }

    #[test]
    fn a_rule_is_off_for_as_long_as_it_is_left_out() {
        assert!(is_on(Rule::Loads));
        without(Rule::Loads, || assert!(!is_on(Rule::Loads) && is_on(Rule::Streams)));
        assert!(is_on(Rule::Loads));
        leave_out(Rules::default().with(Rule::Turns));
        assert!(!is_on(Rule::Turns));
        leave_out(Rules::default());
    }
}
