//! How much of the RAM the pool may have, and how much faults close together may bring from the swap file: a pure function of what was
//! measured, by trial.
//!
//! Frames save faults, a pool saves reads, and nothing about a page that comes back tells which of the two there should be more of
//! (`docs/decisions/0030`). Nor do the pages that a block would want anyway tell whether the rest of it pushes out what is wanted more. So
//! another way is tried now and then, and kept if the program's threads then have more time for themselves: between their faults
//! ([`crate::meter`]). That is what memory is there to give.
//!
//! A share is halved or doubled, or changed by an eighth of the RAM where that is less: a trial that is in vain must not cost much. A trial: the
//! share changes, the pool comes to what it may own, and the last [`PERIODS`] periods are compared with as many before it, less the kernel's part of the faults, the same for both.
//!
//! | what | when |
//! | - | - |
//! | no trial | fewer than [`FAULTS_MIN`] faults a second, or the program's time went up and down by more than its mean |
//! | first trial | [`FIRST_NS`] after the program began to fault, had twice its time, or half, or twice its faulting threads, or half |
//! | what is tried | the other zeal for nearness ([`crate::trials::Zeal`]) where it matters, but no more of it once a smaller pool (not: none) was worth it; else, and after that, another share |
//! | what is tried first where the data is hardly more than the RAM ([`DATA_PERCENT`]) | no pool ([`CLOSED`]), by steps that are not judged, [`DWELL_NS`] each, and then judged bad after [`FAR_NS`] at the earliest, or after half of that with less than [`FAR_HOPELESS_PERCENT`] % of the time; if it is, or was spoiled twice, never again; if it is kept, what is next comes [`FAR_RESTS`] times as long later, or soon when the data has grown beyond [`DATA_PERCENT_LEAPT`] |
//! | which share | less of the pool, the next share that it is larger than; after a trial in vain the other way, or, if there is none, the pool is small and the step cost hardly anything, as far as it goes |
//! | which periods count | not those, up to [`UNSEEN_MAX`] in a row, with much less time and fewer faulting threads than before, where the process is as busy as if those that are missing ran without a fault: it is not seen what they have |
//! | kept, and the next step the same way tried | [`GAIN_PERCENT`] % more time, and in each period more than in all but one before; or the program is as busy without faults |
//! | in vain | at once with less than [`HOPELESS_PERCENT`] % of the time; after [`TRIAL_NS`] without a gain; later while the time still grows |
//! | even: not undone, for each change costs | a smaller share, of less than all, with which the time is less than it was by no more than a gain would have to be, also than when one was kept last. No pool at all is kept then |
//! | called off | more threads fault, or fewer and the process is less busy: it is not the same program any more. The next waits [`FIRST_NS`], twice as long each time |
//! | rest after a trial in vain | as long as it took, or [`TRIAL_NS`], [`RESTS`] times, twice that after each one more; after a hopeless one twice as long, and for each time that a trial broke the program |
//! | begun anew with all for the pool | the program lost half of its time; shares of less than twice what it had then are barred for [`BAR_NS`], then longer, but where it fell right after a trial in vain, which did that: then the way down is the same again, up to [`BREAKS`] times |
//!
//! While the swap file takes nothing the pool may have all.

use crate::trials::Zeal;

/// Shortest time between two looks, ns.
pub const PERIOD_NS: u64 = 100_000_000;
/// Periods that are compared.
pub const PERIODS: usize = 4;
/// The smallest share is the largest halved so many times.
const HALVINGS: u32 = 4;
/// No step is more than this part of the RAM.
const STEP_PART: u32 = 8;
/// One as far as it goes is for pools of no more than this part of it.
const FAR_PART: u32 = 4;
/// Data of no more than this percentage of the RAM: without a pool little of it would be out.
const DATA_PERCENT: u64 = 133;
/// Without a pool and with more than this it is tried again.
const DATA_PERCENT_LEAPT: u64 = 150;
/// Leaps, for one may be spoiled.
const LEAPS: u32 = 2;
/// A working set comes together page by page: up to 3 s after the pool has gone there may be less than before.
const FAR_NS: u64 = 4_000_000_000;
/// A step on the way there.
const DWELL_NS: u64 = 600_000_000;
/// The way there may take so long, and its last step is from no more than this part of the RAM.
const WALK_NS_MAX: u64 = 8_000_000_000;
const LAST_PART: u32 = 64;
/// Of the time before: in so long a trial less will not become more.
const FAR_HOPELESS_PERCENT: u64 = 25;
/// As above, as a power of two.
const FAR_RESTS_SHIFT: u32 = 3;
/// As above.
pub const FAR_RESTS: u64 = 1 << FAR_RESTS_SHIFT;
/// Zeal makes a difference when it did in more than a fifth of the periods, for a while: what is wanted of a few blocks goes up and down.
const ZEAL_SCORE: u32 = 20;
const ZEAL_SCORE_MAX: u32 = 60;
/// The smallest in windows: compaction wants two of them vacant.
pub const WINDOWS_MIN: u32 = 6;
/// No pool: pages go to the swap file past it, as they are where that is fast.
pub const CLOSED: u32 = 0;
/// The largest share: all that the pool may ever have.
pub const ALL: u32 = u32::MAX;
/// Faults a second that make a trial worth while: some percent of one processor.
pub const FAULTS_MIN: u64 = 3000;
/// Fewer in a period say nothing about the time between them.
const GAPS_MIN: u64 = 20;
/// What a trial must gain.
pub const GAIN_PERCENT: u64 = 8;
/// And in millionths of a processor: less is noise.
const GAIN_MIN: u64 = 2_000;
/// A change of less says nothing about what the program does, in millionths of a processor.
const CHANGE_MIN: u64 = 10_000;
/// Of the time before: less will not become more.
pub const HOPELESS_PERCENT: u64 = 70;
/// Of the processor time before, when faults have all but ended.
const BUSY_PERCENT: u64 = 90;
/// Faulting for so long comes before the first trial.
pub const FIRST_NS: u64 = 3_000_000_000;
/// Rest after a program's first trial if it is in vain, in times that it took, as a power of two.
const RESTS_SHIFT: u32 = 2;
/// As above.
pub const RESTS: u64 = 1 << RESTS_SHIFT;
/// Longest rest.
pub const REST_NS_MAX: u64 = 240_000_000_000;
/// After a trial of zeal in vain the program comes to itself again in so many times as long.
const ZEAL_SETTLES: u64 = 5;
/// For so long no share is tried with which the program fell, twice as long each time, and at most so long.
pub const BAR_NS: u64 = 60_000_000_000;
/// As above.
pub const BAR_NS_MAX: u64 = 480_000_000_000;
/// A program that falls so soon after a trial in vain had come to itself was broken by it.
const BREAKS_NS: u64 = 2_000_000_000;
/// Falls of that kind after which the next one is like any other: a program that every trial breaks is to be left alone.
const BREAKS: u32 = 2;
/// After a change, before it is measured.
pub const SETTLE_NS: u64 = 200_000_000;
/// Longest wait for a pool that may have more to have it.
pub const GROW_NS: u64 = 500_000_000;
/// Longest wait for the pool to come to its share.
pub const SETTLE_NS_MAX: u64 = 3_000_000_000;
/// So many periods in a row that say nothing are left out.
const UNSEEN_MAX: u32 = 20;
/// No period is as long in which the process ran.
const STANDSTILL_NS: u64 = 10 * PERIOD_NS;
/// A trial is measured for so long if it has no result.
pub const TRIAL_NS: u64 = 1_500_000_000;
/// And while the program's time still grows, after this.
pub const TRIAL_NS_MAX: u64 = 4_000_000_000;

/// What is seen at the end of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The clock, ns.
    pub now_ns: u64,
    /// What there was since the last look.
    pub period: Period,
    /// The kernel's part of a fault, ns, as known now.
    pub floor_ns: u64,
    /// Threads that faulted lately.
    pub threads: u32,
    /// Windows that the RAM has.
    pub ram: u32,
    /// Windows that the program's data would fill.
    pub data: u32,
    /// Those that the pool owns.
    pub owned: u32,
    /// Most that it may ever own.
    pub most: u32,
    /// Most that it may own now.
    pub limit: u32,
    /// The swap file takes pages.
    pub usable: bool,
    /// And has room for what a smaller pool gives it.
    pub plenty: bool,
    /// Zeal makes a difference now.
    pub zeal_matters: bool,
}

impl Look {
    /// Whether the data is no more than this percentage of the RAM.
    fn has_data(&self, percent: u64) -> bool {
        u64::from(self.data) * 100 <= u64::from(self.ram) * percent
    }

    fn is_faulting(&self) -> bool {
        u128::from(self.period.gaps) * 1_000_000_000
            >= u128::from(FAULTS_MIN) * u128::from(self.period.elapsed_ns)
    }
}

/// A stretch of the program's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// How long it was, ns.
    pub elapsed_ns: u64,
    /// Time between faults, of all threads, ns.
    pub between_ns: u64,
    /// How many times that was.
    pub gaps: u64,
    /// Processor time of the process, ns.
    pub busy_ns: u64,
}

impl Period {
    /// The time that threads had for themselves, in millionths of what passed.
    fn rate(&self, floor_ns: u64) -> u64 {
        self.millionths(self.between_ns.saturating_sub(self.gaps * floor_ns))
    }

    /// The processor time of the process, likewise.
    fn busy(&self) -> u64 {
        self.millionths(self.busy_ns)
    }

    fn millionths(&self, ns: u64) -> u64 {
        (u128::from(ns) * 1_000_000 / u128::from(self.elapsed_ns.max(1))) as u64
    }

    fn and(&self, other: &Period) -> Period {
        Period {
            elapsed_ns: self.elapsed_ns + other.elapsed_ns,
            between_ns: self.between_ns + other.between_ns,
            gaps: self.gaps + other.gaps,
            busy_ns: self.busy_ns + other.busy_ns,
        }
    }
}

/// The last periods, newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Periods {
    of: [Period; PERIODS],
    n: usize,
}

impl Periods {
    fn push(&mut self, period: Period) {
        self.of.rotate_right(1);
        self.of[0] = period;
        self.n = (self.n + 1).min(PERIODS);
    }

    /// All together, if all are there.
    fn whole(&self) -> Option<Period> {
        (self.n == PERIODS).then(|| self.of.iter().fold(Period::default(), |sum, p| sum.and(p)))
    }

    fn rates(&self, floor_ns: u64) -> [u64; PERIODS] {
        self.of.map(|period| period.rate(floor_ns))
    }

    /// Whether it was about the same in all.
    fn are_steady(&self, floor_ns: u64) -> bool {
        let rates = self.rates(floor_ns);
        let (least, most) = rates.iter().fold((u64::MAX, 0), |(l, m), r| (l.min(*r), m.max(*r)));
        self.whole().is_some_and(|whole| most - least <= whole.rate(floor_ns))
    }

    /// Whether the newer half is more than the older by a twentieth.
    fn are_rising(&self, floor_ns: u64) -> bool {
        let rates = self.rates(floor_ns);
        let (newer, older) = rates.split_at(PERIODS / 2);
        newer.iter().sum::<u64>() * 20 > older.iter().sum::<u64>() * 21
    }

    /// Whether each is more than all but one of the others.
    fn exceed(&self, others: &Periods, floor_ns: u64) -> bool {
        let mut sorted = others.rates(floor_ns);
        sorted.sort_unstable();
        self.rates(floor_ns).iter().all(|rate| *rate > sorted[PERIODS - 2])
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing is tried.
    #[default]
    Watch,
    /// The share has changed; the pool comes to it.
    Settle,
    /// And what comes of it is seen.
    Measure,
}

/// What holds until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Windows that the pool may own, if its largest share allows them; or [`ALL`].
    pub share: u32,
    /// How much must be wanted before nearness brings more.
    pub zeal: Zeal,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice { share: ALL, zeal: Zeal::Frugal }
    }
}

/// What a trial is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Zeal,
    Share,
}

/// A trial under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Trial {
    since_ns: u64,
    /// The share has been what it is.
    step_ns: u64,
    /// The pool had come to its share.
    measured_since_ns: u64,
    kind: Kind,
    /// Of no pool at all, past the shares between.
    at_once: bool,
    /// What held before.
    from: Choice,
    /// Periods before.
    before: Periods,
    /// Faulting threads then.
    threads: u32,
    /// Windows that the pool owned.
    owned: u32,
}

/// How a trial ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kept,
    /// There are too few faults to see what the program has.
    KeptUnseen,
    /// Another share that is no worse: undoing it would cost, and bring nothing.
    Even,
    InVain,
    Hopeless,
    CalledOff,
}

/// Trials so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Begun.
    pub begun: u64,
    /// And kept.
    pub kept: u64,
}

/// Follows the measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chooser {
    choice: Choice,
    phase: Phase,
    /// What the next trial is about, if it can be.
    kind: Kind,
    /// Grows while zeal makes a difference, and falls a quarter as fast.
    zeal_score: u32,
    periods: Periods,
    trial: Trial,
    /// Towards a larger pool.
    up: bool,
    /// A small step towards a smaller one was in vain: the next is as far as it goes.
    far: bool,
    /// How often the smallest share was tried at once; [`LEAPS`] also when it was not worth it.
    leaps: u32,
    /// The share came from that.
    leapt: bool,
    /// The next rest is the time of the trial, doubled so often.
    doublings: u32,
    /// No trial before; 0: the program has not faulted yet.
    due_ns: u64,
    /// Nor before this: trials were called off, so often one after the other, or the swap file took nothing.
    waits_until_ns: u64,
    called_off: u32,
    /// Threads that faulted, at the look before.
    threads: u32,
    /// Periods left out, in a row.
    unseen: u32,
    /// After a trial in vain: what is measured before says nothing.
    settles_until_ns: u64,
    /// No share of less than twice so many windows before the time, for the program fell there; and how often that was.
    barred: u32,
    barred_until_ns: u64,
    bars: u32,
    /// A fall before this is the doing of a trial in vain: what was before did not come back. And how often that was.
    breaks_until_ns: u64,
    breaks: u32,
    /// A smaller pool was worth it.
    frames_pay: bool,
    /// By what the program is known again: steady periods when its trials began or one was kept, and how many threads faulted.
    known: (Period, u32),
    /// For the statistics.
    pub counts: Counts,
}

impl Chooser {
    /// In the child of a fork: what is known of the program is the parent's.
    pub fn forked(&mut self) {
        let choice = if self.phase == Phase::Watch { self.choice } else { self.trial.from };
        *self = Chooser { choice, leapt: choice.share == CLOSED, counts: self.counts, ..Chooser::default() };
    }

    /// What holds from now on.
    pub fn next(&mut self, mut look: Look) -> Choice {
        // The number of an epoch of a few hundred faults goes up and down.
        let threads = core::mem::replace(&mut self.threads, look.threads);
        let unseen = self.is_unseen(look);
        self.unseen = if unseen { self.unseen + 1 } else { 0 };
        look.threads = look.threads.max(threads);
        if !look.usable {
            if self.choice.share != ALL || self.phase != Phase::Watch {
                self.wait_longer(look.now_ns);
            }
            (self.choice, self.phase, self.periods) = Default::default();
            (self.leapt, self.frames_pay) = (false, false);
            return self.choice;
        }
        self.zeal_score = match look.zeal_matters {
            true => (self.zeal_score + 4).min(ZEAL_SCORE_MAX),
            false => self.zeal_score.saturating_sub(1),
        };
        match self.phase {
            Phase::Watch => self.watch(look),
            // The process, or all of the machine, stood still.
            _ if look.period.elapsed_ns > STANDSTILL_NS => self.end(look, End::CalledOff),
            Phase::Settle => self.settle(look),
            Phase::Measure => self.measure(look),
        }
        self.choice
    }

    /// Whether threads that faulted before seem to run without a fault now, so that this period does not show what the program has.
    fn is_unseen(&self, look: Look) -> bool {
        let (before, threads) = match self.phase {
            Phase::Watch => self.known,
            _ => (self.trial.before.whole().unwrap_or_default(), self.trial.threads),
        };
        let missing = u64::from(threads.saturating_sub(look.threads));
        let little = look.period.rate(look.floor_ns) * 100 < before.rate(look.floor_ns) * HOPELESS_PERCENT;
        missing > 0 && little && look.period.busy() * 100 >= missing * 1_000_000 * BUSY_PERCENT
    }

    /// Whether a period is one that is left out.
    fn is_left_out(&self) -> bool {
        (1..=UNSEEN_MAX).contains(&self.unseen)
    }

    fn watch(&mut self, look: Look) {
        if look.period.gaps < GAPS_MIN || look.now_ns < self.settles_until_ns {
            self.periods = Periods::default();
            return;
        }
        if self.is_left_out() {
            return;
        }
        self.periods.push(look.period);
        let Some(whole) = self.periods.whole().filter(|_| self.periods.are_steady(look.floor_ns)) else {
            return;
        };
        if self.due_ns == 0 || self.is_another(&whole, look) {
            self.due_ns = look.now_ns + FIRST_NS;
            self.doublings = RESTS_SHIFT;
            if !differ(self.known.1, look.threads) {
                (self.waits_until_ns, self.called_off) = (0, 0);
            }
            (self.far, self.kind) = (false, Kind::Zeal);
            let paid = core::mem::take(&mut self.frames_pay);
            if self.bar_if_fallen(&whole, look) {
                (self.kind, self.frames_pay) = (Kind::Share, paid);
            }
            self.known = (whole, look.threads);
        }
        if self.leapt && !look.has_data(DATA_PERCENT_LEAPT) {
            self.due_ns = self.due_ns.min(look.now_ns + FIRST_NS);
            (self.leapt, self.up, self.doublings) = (false, true, 0);
        }
        // Faults may have become few because each takes long: that is seen above, with whatever share there is.
        if !look.is_faulting() || look.now_ns < self.due_ns.max(self.waits_until_ns) {
            return;
        }
        let from = self.choice;
        let leap = self.may_leap(look).then(|| self.next_step(look)).flatten();
        // What eagerness brings takes frames: where these were worth more than the pool's, a trial of it would only break the program.
        let spared = self.frames_pay && from.zeal == Zeal::Frugal;
        let zeal = self.zeal_score >= ZEAL_SCORE && leap.is_none() && !spared;
        let kind = if zeal { self.kind } else { Kind::Share };
        let to = match kind {
            Kind::Zeal => Some(Choice { zeal: from.zeal.other(), ..from }),
            Kind::Share => leap.or_else(|| self.next_step(look)).map(|share| Choice { share, ..from }),
        };
        let Some(to) = to else {
            self.kind = Kind::Zeal;
            return;
        };
        self.begin(look, to, kind);
        self.trial.at_once = leap.is_some();
        self.leaps += u32::from(self.trial.at_once);
    }

    fn begin(&mut self, look: Look, to: Choice, kind: Kind) {
        self.trial = Trial {
            since_ns: look.now_ns,
            step_ns: look.now_ns,
            measured_since_ns: look.now_ns,
            kind,
            from: self.choice,
            before: self.periods,
            threads: look.threads,
            owned: look.owned,
            ..Trial::default()
        };
        self.choice = to;
        self.breaks_until_ns = 0;
        self.counts.begun += 1;
        self.phase = Phase::Settle;
    }

    /// The program has lost half of its time. It may be another one now; or it was one whose working set fits as long as nothing goes
    /// wrong, and with so small a pool something did. So the pool may have all again, and no share so small for long.
    /// True where a trial did that, and the way down is the same again: not more than [`BREAKS`] times.
    fn bar_if_fallen(&mut self, whole: &Period, look: Look) -> bool {
        let fell = self.has_half(whole, look) && !differ(self.known.1, look.threads);
        if !fell || self.choice == Choice::default() {
            return false;
        }
        let broken = look.now_ns < self.breaks_until_ns && self.breaks < BREAKS;
        if broken {
            self.breaks += 1;
        } else if self.choice.share != ALL {
            let rest = BAR_NS.saturating_mul(1 << self.bars.min(16)).min(BAR_NS_MAX);
            (self.barred, self.barred_until_ns) = (look.limit.max(WINDOWS_MIN), look.now_ns + rest);
            self.bars += 1;
        }
        if self.leapt {
            (self.leapt, self.leaps) = (false, if broken { LEAPS - 1 } else { LEAPS });
        }
        self.choice = Choice::default();
        (self.up, self.periods) = (false, Periods::default());
        broken
    }

    /// Whether what the program does has changed.
    fn is_another(&self, whole: &Period, look: Look) -> bool {
        let (known, now) = (self.known.0.rate(look.floor_ns), whole.rate(look.floor_ns));
        now / 2 > known + CHANGE_MIN || self.has_half(whole, look) || differ(self.known.1, look.threads)
    }

    /// Whether the program has less than half of the time that it had.
    fn has_half(&self, whole: &Period, look: Look) -> bool {
        whole.rate(look.floor_ns) + CHANGE_MIN < self.known.0.rate(look.floor_ns) / 2
    }

    /// Whether no pool at all is tried next.
    fn may_leap(&self, look: Look) -> bool {
        let barred = look.now_ns < self.barred_until_ns;
        look.has_data(DATA_PERCENT) && self.choice.share == ALL && self.leaps < LEAPS && !barred
    }

    /// What to try next, and remembers which way.
    fn next_step(&mut self, look: Look) -> Option<u32> {
        // A share that the pool does not reach changes nothing.
        let (least, step) = ((look.most >> HALVINGS).max(WINDOWS_MIN), (look.ram / STEP_PART).max(1));
        let below = |from: u32| (from / 2).max(from.saturating_sub(step)).max(least);
        let (mut from, mut smaller) = (look.limit, below(look.limit));
        let least = if look.now_ns < self.barred_until_ns { least.max(self.barred * 2) } else { least };
        while smaller >= look.owned && smaller < from {
            (from, smaller) = (smaller, below(smaller));
        }
        let smaller =
            (look.plenty && smaller < look.owned && smaller < from && smaller >= least).then_some(smaller);
        let above = match look.limit {
            CLOSED if !look.has_data(DATA_PERCENT_LEAPT) => ALL,
            limit => (limit * 2).min(limit + step).max(WINDOWS_MIN),
        };
        let larger =
            (self.choice.share != ALL).then_some(if above < look.most / 8 * 7 { above } else { ALL });
        self.up = larger.is_some() && (self.up || smaller.is_none());
        let small = look.limit.min(look.owned) <= look.ram / FAR_PART;
        let far = self.far && small && !self.may_leap(look);
        if self.up { larger } else { smaller.map(|near| if far { least } else { near }) }
    }

    /// The next share on the way to none.
    fn step_down(&self, look: Look) -> u32 {
        let step = (look.ram / STEP_PART).max(1);
        let next = (look.limit / 2).max(look.limit.saturating_sub(step));
        if next > WINDOWS_MIN.max(look.ram / LAST_PART) { next } else { CLOSED }
    }

    fn settle(&mut self, look: Look) {
        let passed = look.now_ns.saturating_sub(self.trial.step_ns);
        let walked = look.now_ns.saturating_sub(self.trial.since_ns);
        // The last windows may not become vacant: records of many sizes lie in them.
        let spread = if look.limit == CLOSED { WINDOWS_MIN } else { 1 };
        let over = look.owned > look.limit + look.limit / 16 + spread;
        // A larger pool fills as pages go out, if they do.
        let grows = self.trial.kind == Kind::Share && self.up;
        let ready = if grows { look.owned == look.limit || passed >= GROW_NS } else { !over };
        if look.threads > self.trial.threads && differ(self.trial.threads, look.threads) {
            self.end(look, End::CalledOff);
        } else if over && (passed > SETTLE_NS_MAX || walked > WALK_NS_MAX) {
            // The disk is not as fast as that. What has gone so far is judged, if it is anything.
            let smaller = self.trial.kind == Kind::Share && !self.up;
            if !smaller || look.owned >= self.trial.owned {
                return self.end(look, if smaller { End::InVain } else { End::CalledOff });
            }
            self.choice.share = look.owned;
            self.trial.at_once = false; // it is a step like others now
            self.begin_measuring(look.now_ns);
        } else if passed >= DWELL_NS && ready && self.trial.at_once && look.limit != CLOSED {
            self.choice.share = self.step_down(look);
            self.trial.step_ns = look.now_ns;
        } else if passed >= SETTLE_NS && ready && !(self.trial.at_once && look.limit != CLOSED) {
            self.begin_measuring(look.now_ns);
        }
    }

    /// Whether the trial has shown hardly less time than there was before it.
    fn is_close(&self, floor_ns: u64) -> bool {
        let rate = |periods: &Periods| periods.whole().map_or(0, |whole| whole.rate(floor_ns));
        rate(&self.periods) * 100 >= rate(&self.trial.before) * (100 - GAIN_PERCENT)
    }

    fn begin_measuring(&mut self, now_ns: u64) {
        self.trial.measured_since_ns = now_ns;
        self.periods = Periods::default();
        self.phase = Phase::Measure;
    }

    fn measure(&mut self, look: Look) {
        if !self.is_left_out() {
            self.periods.push(look.period);
        }
        let others = differ(self.trial.threads, look.threads);
        if others && look.threads > self.trial.threads {
            return self.end(look, End::CalledOff);
        }
        let both = self.periods.whole().zip(self.trial.before.whole());
        let Some((now, before)) = both else { return };
        // Threads that fault no more are not seen between their faults.
        if others || now.gaps < PERIODS as u64 * GAPS_MIN {
            let busy = now.busy() * 100 >= before.busy() * BUSY_PERCENT;
            return self.end(look, if busy { End::KeptUnseen } else { End::CalledOff });
        }
        let floor = look.floor_ns;
        let (rate, rate_before) = (now.rate(floor), before.rate(floor));
        let gained = rate * 100 >= rate_before * (100 + GAIN_PERCENT)
            && rate >= rate_before + GAIN_MIN
            && self.periods.exceed(&self.trial.before, floor);
        let below = |percent: u64| rate * 100 < rate_before * percent;
        let hopeless = below(HOPELESS_PERCENT);
        // What was in the pool, and is wanted, comes back first.
        let rising = self.periods.are_rising(floor);
        let took = look.now_ns.saturating_sub(self.trial.measured_since_ns);
        let most = match (self.trial.at_once, rising) {
            (false, false) => TRIAL_NS,
            (true, true) => FAR_NS / 2 * 3,
            (false, true) => TRIAL_NS_MAX,
            (true, false) => FAR_NS,
        };
        let early =
            self.trial.at_once && took < FAR_NS && (took < FAR_NS / 2 || !below(FAR_HOPELESS_PERCENT));
        if (gained || hopeless && !early) && !rising || took >= most && !early {
            let Trial { kind, at_once, from, .. } = self.trial;
            // Larger ones are judged before they are filled, so they have to gain.
            let walks = kind == Kind::Share && !self.up && (at_once || from.share != ALL);
            let known = self.known.0.rate(floor) * (100 - GAIN_PERCENT);
            let even = walks && self.is_close(floor) && rate * 100 >= known;
            self.end(
                look,
                match (gained || even && at_once, even, hopeless) {
                    (true, ..) => End::Kept,
                    (_, true, _) => End::Even,
                    (_, _, true) => End::Hopeless,
                    _ => End::InVain,
                },
            );
        }
    }

    /// Something spoiled a trial, again.
    fn wait_longer(&mut self, now_ns: u64) {
        self.waits_until_ns = now_ns + (FIRST_NS << self.called_off.min(6));
        self.called_off += 1;
    }

    fn end(&mut self, look: Look, end: End) {
        match end {
            End::Kept | End::KeptUnseen => {
                self.counts.kept += 1;
                self.known = match end {
                    End::Kept => (self.periods.whole().unwrap_or_default(), look.threads),
                    _ => (self.trial.before.whole().unwrap_or_default(), self.trial.threads),
                };
                self.called_off = 0;
                self.frames_pay |=
                    end == End::Kept && self.trial.kind == Kind::Share && !self.up && !self.trial.at_once;
                (self.doublings, self.due_ns, self.far, self.kind) = (0, look.now_ns, false, Kind::Share);
                self.leapt = self.trial.at_once;
                if self.leapt {
                    // There is nothing smaller to go on to.
                    let took = look.now_ns.saturating_sub(self.trial.since_ns).max(FAR_NS);
                    (self.doublings, self.due_ns) = (FAR_RESTS_SHIFT, look.now_ns + took * FAR_RESTS);
                }
            }
            End::CalledOff => {
                self.choice = self.trial.from;
                self.wait_longer(look.now_ns);
            }
            End::Even | End::InVain | End::Hopeless => {
                let even = end == End::Even;
                if !even {
                    self.choice = self.trial.from;
                }
                self.called_off = 0;
                if self.trial.at_once {
                    self.leaps = LEAPS;
                }
                if self.trial.kind == Kind::Share {
                    self.far = !self.up && !self.far && !self.trial.at_once && self.is_close(look.floor_ns);
                    self.up = !self.up;
                    self.kind = Kind::Zeal;
                } else {
                    self.kind = Kind::Share;
                }
                // The usual steps follow a leap that failed soon, as if it had not been.
                let leapt = self.trial.at_once;
                let doublings = self.doublings + u32::from(end == End::Hopeless);
                let took = look.now_ns.saturating_sub(self.trial.since_ns).min(SETTLE_NS_MAX + TRIAL_NS_MAX);
                let shift = if leapt { 0 } else { doublings.max(RESTS_SHIFT + self.breaks) };
                let rest = took.max(TRIAL_NS).saturating_mul(1 << shift.min(16)).min(REST_NS_MAX);
                self.due_ns = look.now_ns + rest;
                // What the trial pushed out comes back: all of a working set where too much was brought.
                let settling = if self.trial.kind == Kind::Zeal { took * ZEAL_SETTLES } else { took };
                self.settles_until_ns = look.now_ns + if even { 0 } else { settling };
                self.breaks_until_ns = if even { 0 } else { self.settles_until_ns + BREAKS_NS };
                if !leapt {
                    self.doublings = shift + 1;
                }
            }
        }
        self.periods = Periods::default();
        self.phase = Phase::Watch;
    }
}

/// Whether one is more than twice the other. Of two threads one may be missed.
fn differ(a: u32, b: u32) -> bool {
    a.max(b) > 2 * a.min(b) + 2
}

#[cfg(test)]
mod tests;
