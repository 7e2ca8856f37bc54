//! Settings shared by the `weir` command and the preloaded engine.
//!
//! [`OPTIONS`] is the one place where an option's name, environment variable, default and help text are
//! written down. The command builds its flags, its configuration file keys and `weir config` from it; the
//! engine reads the same table through [`Settings::from_env`]. Nothing here panics: it runs inside other
//! people's programs.

pub mod file;
pub mod names;
pub mod rules;
mod size;
mod swap;
mod values;

use std::ffi::CString;
use std::path::PathBuf;

use rules::Rules;
pub use size::{SizeError, format_size, parse_size};
use swap::swap;
pub use swap::{DEFAULT_SWAP_BATCH, DEFAULT_SWAP_DIR, SWAP_BYTES_MIN, SwapIo, SwapSetting};
pub use values::ConfigError;
use values::{choice, interval, memory, percent, place, share, switch, tree, up_to, whole_number};

/// Smallest budget the engine can work in, in bytes: frames for a handful of blocks, the pool's first slabs
/// and the page table's own pages need about half of this; the rest is room to move.
pub const MEMORY_BYTES_MIN: u64 = crate::limits::BUDGET_BYTES_MIN;

/// Most pages, and default, of `unmap-batch`.
pub const UNMAP_BATCH_MAX: u16 = 512;

/// Most pages, and default, of `store-batch`.
pub const STORE_BATCH_MAX: u16 = crate::limits::STORE_PER_HOLD as u16;

/// Default of `swappiness`, as of the kernel's.
pub const DEFAULT_SWAPPINESS: u8 = 60;

/// Largest `swappiness`, as of the kernel's.
pub const SWAPPINESS_MAX: u8 = 200;

/// Default of `pool-max`, in percent of the budget.
pub const DEFAULT_POOL_MAX_PERCENT: u8 = 90;

/// Which option an [`OptionSpec`] describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionId {
    /// The option `memory`.
    Memory,
    /// The option `swap`.
    Swap,
    /// The option `swap-dir`.
    SwapDir,
    /// The option `swap-encryption`.
    SwapEncryption,
    /// The option `swap-io`.
    SwapIo,
    /// The option `swap-batch`.
    SwapBatch,
    /// The option `pool-max`.
    PoolMax,
    /// The option `policy`.
    Policy,
    /// The option `codec`.
    Codec,
    /// The option `faults`.
    Faults,
    /// The option `fork`.
    Fork,
    /// The option `mlock`.
    Mlock,
    /// The option `files`.
    Files,
    /// The option `swappiness`.
    Swappiness,
    /// The option `stats`.
    Stats,
    /// The option `stats-interval`.
    StatsInterval,
    /// The option `quiet`.
    Quiet,
    /// The option `verbose`.
    Verbose,
    /// The option `pager`.
    Pager,
    /// The option `unmap-batch`.
    UnmapBatch,
    /// The option `store-batch`.
    StoreBatch,
    /// The option `frame-order`.
    FrameOrder,
    /// The option `loads`.
    Loads,
    /// The option `cold`.
    Cold,
    /// The option `balance`.
    Balance,
    /// The option `budget-per`.
    BudgetPer,
    /// The option `tree`.
    Tree,
    /// The option `place`.
    Place,
    /// The option `share`.
    Share,
    /// The option `rules-off`.
    RulesOff,
}

/// Everything there is to know about one option.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Which option it is.
    pub id: OptionId,
    /// Long flag without the dashes, and key in `config.toml`.
    pub name: &'static str,
    /// The flag of one letter.
    pub short: Option<char>,
    /// The environment variable.
    pub env: &'static str,
    /// Placeholder of the value in help texts; empty for a switch, which is given without a value.
    pub value: &'static str,
    /// Value when nothing else sets one; empty for "not set".
    pub default: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Left out of `--help`: development switches.
    pub hidden: bool,
}

impl OptionSpec {
    /// Whether the flag takes no value.
    pub fn is_switch(&self) -> bool {
        self.value.is_empty()
    }

    /// Words that the option takes, as its placeholder lists them: those in small letters.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        let is_word = |text: &&str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        self.value.split('|').filter(is_word)
    }

    /// What holds for a program under Weir when nothing sets the option. An engine that is made by hand
    /// ([`Settings::from_values`]) has no swap file unless it is given one.
    pub fn default_for_programs(&self) -> &'static str {
        if self.id == OptionId::Swap { "auto" } else { self.default }
    }
}

const fn spec(
    id: OptionId,
    name: &'static str,
    env: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { id, name, short: None, env, value, default, help, hidden: false }
}

/// An option that has a flag of one letter as well.
const fn short(letter: char, option: OptionSpec) -> OptionSpec {
    OptionSpec { short: Some(letter), ..option }
}

/// All options, in the order in which help and `weir config` show them.
pub const OPTIONS: &[OptionSpec] = &[
    short(
        'm',
        spec(
            OptionId::Memory,
            "memory",
            "WEIR_MEMORY",
            "auto|SIZE",
            "50%",
            "RAM that the program may have in all: a size (2G), a percentage of the machine's (or \
             container's) RAM, max, or auto for the default; all but a size follow the container's limit",
        ),
    ),
    spec(
        OptionId::BudgetPer,
        "budget-per",
        "WEIR_BUDGET_PER",
        "process|tree",
        "process",
        "Whether each process may have so much, or all of the program's processes together",
    ),
    spec(
        OptionId::Swap,
        "swap",
        "WEIR_SWAP",
        "none|auto|SIZE|DIR[:SIZE]",
        "none",
        "Swap file for pages when the compressed pool is full: its size, or auto for what fits safely on \
         the disk",
    ),
    spec(
        OptionId::SwapDir,
        "swap-dir",
        "WEIR_SWAP_DIR",
        "DIR",
        "",
        "Folder of the swap file, on a disk (default: /var/tmp)",
    ),
    spec(
        OptionId::SwapEncryption,
        "swap-encryption",
        "WEIR_SWAP_ENCRYPTION",
        "on|none",
        "on",
        "Whether pages in the swap file are encrypted and authenticated, or have a checksum",
    ),
    spec(
        OptionId::SwapIo,
        "swap-io",
        "WEIR_SWAP_IO",
        "auto|uring|threads",
        "auto",
        "How the swap file is read and written: io_uring, or pread and pwrite",
    ),
    spec(
        OptionId::SwapBatch,
        "swap-batch",
        "WEIR_SWAP_BATCH",
        "N",
        "256",
        "Most pages written to the swap file together, 1 to 256; a batch ends at 256 KiB in any case",
    ),
    spec(
        OptionId::PoolMax,
        "pool-max",
        "WEIR_POOL_MAX",
        "PERCENT",
        "90",
        "Largest share of the budget that compressed pages may take",
    ),
    spec(
        OptionId::Policy,
        "policy",
        "WEIR_POLICY",
        "writeback|writethrough|adaptive",
        "adaptive",
        "When pool pages are written to swap (no effect without swap)",
    ),
    spec(OptionId::Codec, "codec", "WEIR_CODEC", "auto|lz4|zstd|none", "auto", "How pages are compressed"),
    spec(
        OptionId::Faults,
        "faults",
        "WEIR_FAULTS",
        "auto|inline|thread",
        "auto",
        "Who serves page faults: the faulting thread (inline), a handler thread, or what works (auto)",
    ),
    spec(
        OptionId::Fork,
        "fork",
        "WEIR_FORK",
        "share|copy|refuse",
        "share",
        "What a fork does with managed memory",
    ),
    spec(
        OptionId::Mlock,
        "mlock",
        "WEIR_MLOCK",
        "honour|deny",
        "honour",
        "Whether mlock pins managed pages or fails with EPERM",
    ),
    spec(
        OptionId::Files,
        "files",
        "WEIR_FILES",
        "auto|kernel|none",
        "none",
        "Whether mapped files count against the budget: their pages stay in the kernel's cache, and Weir \
         decides which (kernel; auto: where it can)",
    ),
    spec(
        OptionId::Swappiness,
        "swappiness",
        "WEIR_SWAPPINESS",
        "N",
        "60",
        "How readily the program's memory gives way to mapped files, 0 to 200, as far as there is room for \
         it in pool and swap file",
    ),
    spec(
        OptionId::Stats,
        "stats",
        "WEIR_STATS",
        "FILE",
        "",
        "Write counters to FILE when the program ends (%p is the process id; as JSON if it ends in .json)",
    ),
    spec(
        OptionId::StatsInterval,
        "stats-interval",
        "WEIR_STATS_INTERVAL",
        "SECONDS",
        "",
        "Write them every so many seconds as well, each time in the place of the file before",
    ),
    short(
        'q',
        spec(
            OptionId::Quiet,
            "quiet",
            "WEIR_QUIET",
            "",
            "",
            "No summary on stderr when the program ends, and no warnings",
        ),
    ),
    short(
        'v',
        spec(
            OptionId::Verbose,
            "verbose",
            "WEIR_VERBOSE",
            "",
            "",
            "A line also where Weir was not needed, and the exact figures",
        ),
    ),
    spec(
        OptionId::Pager,
        "pager",
        "WEIR_PAGER",
        "auto|move|copy|segv",
        "auto",
        "How pages travel: moved or copied by userfaultfd, or without it, by SIGSEGV",
    ),
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::UnmapBatch,
            "unmap-batch",
            "WEIR_UNMAP_BATCH",
            "N",
            "512",
            "Most pages unmapped by one system call, 1 to 512; below 512 no page tables are moved",
        )
    },
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::StoreBatch,
            "store-batch",
            "WEIR_STORE_BATCH",
            "N",
            "4",
            "Most pages that leave their frames, and find places in the pool, under one hold of a lock, 1 \
             to 4",
        )
    },
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::FrameOrder,
            "frame-order",
            "WEIR_FRAME_ORDER",
            "kept|scattered",
            "kept",
            "Whether neighbouring pages get neighbouring frames",
        )
    },
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::Loads,
            "loads",
            "WEIR_LOADS",
            "answer|bring",
            "answer",
            "Whether an instruction that loads may be given its value without its page being brought in",
        )
    },
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::Cold,
            "cold",
            "WEIR_COLD",
            "recompress|keep|eager",
            "recompress",
            "Whether pool pages that nobody wants for a while are compressed again with zstd while a \
             processor idles; eager: all, at once",
        )
    },
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::Balance,
            "balance",
            "WEIR_BALANCE",
            "room|blind",
            "room",
            "Whether memory gives way to mapped files as far as there is room for it, or in any case",
        )
    },
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::Tree,
            "tree",
            "WEIR_TREE",
            "PATH",
            "",
            "The file in which the processes of a tree share their budget; named by the first of them, and \
             handed down",
        )
    },
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::Place,
            "place",
            "WEIR_PLACE",
            "N",
            "",
            "Where managed memory begins, of the possible places; chosen at random by the first program, \
             and handed down",
        )
    },
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::Share,
            "share",
            "WEIR_SHARE",
            "SIZE=SHARE",
            "",
            "The budget as it was worked out, and of what surrounds the program it is which share; named by \
             weir run, and handed down",
        )
    },
    #[cfg(any(test, feature = "experiments"))]
    OptionSpec {
        hidden: true,
        ..spec(
            OptionId::RulesOff,
            "rules-off",
            "WEIR_RULES_OFF",
            "RULE[,RULE]",
            "",
            "Rules that an experiment leaves out; weir bench rules lists them",
        )
    },
];

/// When pool pages are written to swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// When the pool evicts them.
    Writeback,
    /// Soon after they enter the pool; they stay in it.
    Writethrough,
    /// Switches between the two, by what is measured.
    Adaptive,
}

/// How pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// The engine chooses per page.
    Auto,
    /// LZ4 for every page that shrinks.
    Lz4,
    /// zstd for every page that shrinks.
    Zstd,
    /// Only same-filled pages are recognised; all others are kept raw.
    None,
}

/// What is done with pool pages that nobody wants for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cold {
    /// They are compressed again with zstd, while a processor idles.
    Recompress,
    /// Nothing happens to them.
    Keep,
    /// Also pages that were wanted, at once and in any budget (tests).
    Eager,
}

/// Who serves page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// In the faulting thread where that works, else a handler thread.
    Auto,
    /// The faulting thread itself; needs no privileges.
    Inline,
    /// A handler thread.
    Thread,
}

/// What a fork does with managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// Pool and page table come along by copy-on-write.
    Share,
    /// The child gets a full copy.
    Copy,
    /// `fork` fails with EAGAIN while memory is managed.
    Refuse,
}

/// What `mlock` does on managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlock {
    /// Pins the pages; they count against the budget.
    Honour,
    /// Fails with EPERM.
    Deny,
}

/// What becomes of files that the program maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// As `Kernel` where that is possible.
    Auto,
    /// Their pages stay in the kernel's cache, within the budget.
    Kernel,
    /// They are left alone.
    None,
}

/// The words for it.
const FILES: &[(&str, Files)] = &[("auto", Files::Auto), ("kernel", Files::Kernel), ("none", Files::None)];

/// How pages travel between the program and the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pager {
    /// Move where the kernel can, else copy; without a userfaultfd as `Segv`.
    Auto,
    /// `UFFDIO_MOVE` (kernel 6.8).
    Move,
    /// Write-protect, copy out, drop.
    Copy,
    /// Guard regions and SIGSEGV, without userfaultfd (kernel 6.13).
    Segv,
}

/// The words for it.
const PAGERS: &[(&str, Pager)] =
    &[("auto", Pager::Auto), ("move", Pager::Move), ("copy", Pager::Copy), ("segv", Pager::Segv)];

/// Every setting, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Hard budget, in bytes; at least [`MEMORY_BYTES_MIN`].
    pub memory: u64,
    /// What it is of the RAM of the machine or of the container: a percentage, or `max`. `None`: it was given
    /// as a size.
    pub share: Option<String>,
    /// Where pages go when the pool is full; `None`: RAM and the pool are all there is.
    pub swap: Option<SwapSetting>,
    /// Largest share of the budget for the pool, 1 to 100 percent.
    pub pool_max_percent: u8,
    /// When pool pages are written to swap.
    pub policy: Policy,
    /// How pages are compressed.
    pub codec: Codec,
    /// Who serves page faults.
    pub faults: Faults,
    /// What a fork does.
    pub fork: Fork,
    /// What `mlock` does.
    pub mlock: Mlock,
    /// What becomes of mapped files.
    pub files: Files,
    /// How readily memory gives way to them.
    pub swappiness: u8,
    /// Only as far as there is room for it.
    pub balance_by_room: bool,
    /// File for the counters at exit; `%p` stands for the process id.
    pub stats: Option<PathBuf>,
    /// Time between two writes of that file while the program runs, ns; 0: only at exit.
    pub stats_interval_ns: u64,
    /// No summary at exit.
    pub quiet: bool,
    /// A summary also of programs that did not need Weir.
    pub verbose: bool,
    /// The budget is that of a whole tree of processes.
    pub per_tree: bool,
    /// Where the processes of the tree share it.
    pub tree: Option<CString>,
    /// How pages travel.
    pub pager: Pager,
    /// Most pages unmapped by one system call.
    pub unmap_batch: u16,
    /// Most pages that leave their frames, and find places in the pool, under one hold of a lock.
    pub store_batch: u16,
    /// Neighbouring pages get neighbouring frames; otherwise single ones, in an order that merges nothing.
    pub frames_in_order: bool,
    /// Instructions that load may be given their values without their pages being brought in.
    pub answers_loads: bool,
    /// Where managed memory begins; `None`: nobody has chosen yet.
    pub place: Option<u32>,
    /// What is done with cold pages of the pool.
    pub cold: Cold,
    /// Rules that an experiment leaves out.
    pub rules_off: Rules,
    /// A pool of a program that asks for it: memory outside is not its, and a swap file is a condition.
    pub embedded: bool,
}

impl Settings {
    /// Settings from environment variables alone, defaults for what is not set. An empty variable counts as
    /// not set. `%` and `max` refer to the RAM of the machine or of the container, whichever is less.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, ConfigError> {
        Settings::from_values(|option| lookup(option.env), weir_os::probe::ram_limit_bytes)
    }

    /// Settings from any source: `value` returns the text set for an option, or nothing for its default.
    /// `total_ram` (bytes, what `%` and `max` refer to) is asked only when a value needs it.
    pub fn from_values(
        value: impl Fn(&OptionSpec) -> Option<String>,
        total_ram: impl Fn() -> u64,
    ) -> Result<Settings, ConfigError> {
        let mut settings = Settings {
            memory: 0,
            share: None,
            swap: None,
            pool_max_percent: DEFAULT_POOL_MAX_PERCENT,
            policy: Policy::Adaptive,
            codec: Codec::Auto,
            faults: Faults::Auto,
            fork: Fork::Share,
            mlock: Mlock::Honour,
            files: Files::None,
            swappiness: DEFAULT_SWAPPINESS,
            balance_by_room: true,
            stats: None,
            stats_interval_ns: 0,
            quiet: false,
            verbose: false,
            pager: Pager::Auto,
            unmap_batch: UNMAP_BATCH_MAX,
            store_batch: STORE_BATCH_MAX,
            frames_in_order: true,
            answers_loads: true,
            per_tree: false,
            tree: None,
            place: None,
            cold: Cold::Recompress,
            rules_off: Rules::default(),
            embedded: false,
        };
        for option in OPTIONS {
            let given = value(option).filter(|text| !text.trim().is_empty());
            let text = given.as_deref().unwrap_or(option.default);
            settings.set(option, text, &total_ram).map_err(|reason| ConfigError {
                option: option.name,
                env: option.env,
                value: text.to_owned(),
                reason,
            })?;
        }
        Ok(settings)
    }

    fn set(&mut self, option: &OptionSpec, text: &str, total_ram: &impl Fn() -> u64) -> Result<(), String> {
        match option.id {
            OptionId::Memory => (self.memory, self.share) = memory(text, option.default, total_ram)?,
            OptionId::Swap => self.swap = swap(text, total_ram)?,
            OptionId::SwapDir | OptionId::SwapEncryption | OptionId::SwapIo | OptionId::SwapBatch => {
                set_swap(self.swap.as_mut(), option.id, text)?;
            }
            OptionId::PoolMax => self.pool_max_percent = percent(text)?,
            OptionId::Policy => {
                self.policy = choice(
                    text,
                    &[
                        ("writeback", Policy::Writeback),
                        ("writethrough", Policy::Writethrough),
                        ("adaptive", Policy::Adaptive),
                    ],
                )?;
            }
            OptionId::Codec => {
                let known = [
                    ("auto", Codec::Auto),
                    ("lz4", Codec::Lz4),
                    ("zstd", Codec::Zstd),
                    ("none", Codec::None),
                ];
                self.codec = choice(text, &known)?;
            }
            OptionId::Faults => {
                let known = [("auto", Faults::Auto), ("inline", Faults::Inline), ("thread", Faults::Thread)];
                self.faults = choice(text, &known)?;
            }
            OptionId::Fork => {
                let known = [("share", Fork::Share), ("copy", Fork::Copy), ("refuse", Fork::Refuse)];
                self.fork = choice(text, &known)?;
            }
            OptionId::Mlock => {
                self.mlock = choice(text, &[("honour", Mlock::Honour), ("deny", Mlock::Deny)])?;
            }
            OptionId::Files => self.files = choice(text, FILES)?,
            OptionId::Swappiness => self.swappiness = up_to(text, SWAPPINESS_MAX)?,
            OptionId::Balance => {
                self.balance_by_room = choice(text, &[("room", true), ("blind", false)])?;
            }
            OptionId::Stats => self.stats = (!text.is_empty()).then(|| PathBuf::from(text)),
            OptionId::StatsInterval => self.stats_interval_ns = interval(text)?,
            OptionId::Quiet => self.quiet = switch(text)?,
            OptionId::Verbose => self.verbose = switch(text)?,
            OptionId::Pager => self.pager = choice(text, PAGERS)?,
            OptionId::UnmapBatch => self.unmap_batch = whole_number(text, UNMAP_BATCH_MAX)?,
            OptionId::StoreBatch => self.store_batch = whole_number(text, STORE_BATCH_MAX)?,
            OptionId::FrameOrder => {
                self.frames_in_order = choice(text, &[("kept", true), ("scattered", false)])?;
            }
            OptionId::Cold => {
                let known = [("recompress", Cold::Recompress), ("keep", Cold::Keep), ("eager", Cold::Eager)];
                self.cold = choice(text, &known)?;
            }
            OptionId::RulesOff => self.rules_off = text.parse()?,
            OptionId::BudgetPer => self.per_tree = choice(text, &[("process", false), ("tree", true)])?,
            OptionId::Tree | OptionId::Place | OptionId::Share if text.is_empty() => {}
            OptionId::Share => self.share = share(text, self.memory, self.share.take())?,
            OptionId::Tree => self.tree = Some(tree(text)?),
            OptionId::Place => self.place = Some(place(text)?),
            OptionId::Loads => {
                self.answers_loads = choice(text, &[("answer", true), ("bring", false)])?;
            }
        }
        Ok(())
    }
}

/// The options that say how to swap; checked also where nothing is swapped.
fn set_swap(setting: Option<&mut SwapSetting>, option: OptionId, text: &str) -> Result<(), String> {
    let mut unused = SwapSetting {
        bytes: None,
        dir: PathBuf::new(),
        encryption: true,
        io: SwapIo::Auto,
        batch: DEFAULT_SWAP_BATCH,
    };
    let setting = setting.unwrap_or(&mut unused);
    match option {
        OptionId::SwapDir if text.is_empty() => {}
        OptionId::SwapDir => setting.dir = PathBuf::from(text),
        OptionId::SwapEncryption => setting.encryption = choice(text, &[("on", true), ("none", false)])?,
        OptionId::SwapIo => {
            let known = [("auto", SwapIo::Auto), ("uring", SwapIo::Uring), ("threads", SwapIo::Threads)];
            setting.io = choice(text, &known)?;
        }
        _ => {
            setting.batch = whole_number(text, DEFAULT_SWAP_BATCH)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
