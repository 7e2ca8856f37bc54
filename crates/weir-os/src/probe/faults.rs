//! Who can serve page faults here: the faulting thread itself, or a thread that reads messages. Inline faults
//! need no privileges, but three things that a container or an old kernel may refuse; each is tried. In the
//! place of userfaultfd guard regions will do.

use std::fmt;

use super::errno::{Errno, Tried, result_of};
use crate::pager::KernelPager;
use crate::uffd::{self, Uffd};

/// Who serves page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// The faulting thread.
    Inline,
    /// A thread of Weir's.
    Thread,
}

impl FaultMode {
    /// Both, in the order in which they are preferred.
    pub const ALL: [FaultMode; 2] = [FaultMode::Inline, FaultMode::Thread];

    /// The word that `--faults` takes.
    pub fn name(self) -> &'static str {
        match self {
            FaultMode::Inline => "inline",
            FaultMode::Thread => "thread",
        }
    }
}

/// What inline faults need, each tried.
#[derive(Clone, Debug)]
pub struct InlineFaults {
    /// Whether the system-call gate is written for this processor.
    pub processor: bool,
    /// Feature bits that a userfaultfd for user mode agreed on, of those that inline faults use.
    pub userfaultfd: Result<u64, Errno>,
    /// Guard regions, and writing to the process's own memory whatever its protection: what the pager
    /// without userfaultfd needs. Not tried where there is a userfaultfd.
    pub guards: Option<Tried>,
    /// Anonymous memory at a fixed address, made executable: the place of the gate.
    pub gate: Tried,
    /// Attaching a seccomp filter that traps.
    pub filter: Tried,
}

/// Why faults cannot be resolved in the faulting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineObstacle {
    /// No gate for this processor.
    Processor,
    /// No userfaultfd for user mode.
    Userfaultfd(Errno),
    /// The kernel does not turn faults into signals.
    NoSignal,
    /// The kernel neither moves pages nor write-protects them.
    NoPager,
    /// No guard regions, asked for in the place of userfaultfd.
    Guards(Errno),
    /// No place for the gate.
    Gate(Errno),
    /// No seccomp filter can be installed.
    Filter(Errno),
}

impl fmt::Display for InlineObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InlineObstacle::Processor => write!(f, "there is no system-call gate for this processor"),
            InlineObstacle::Userfaultfd(e) => write!(f, "userfaultfd for user mode cannot be opened: {e}"),
            InlineObstacle::NoSignal => write!(f, "userfaultfd cannot send SIGBUS"),
            InlineObstacle::NoPager => write!(f, "userfaultfd can neither move nor write-protect pages"),
            InlineObstacle::Guards(e) => {
                write!(f, "guard regions, or /proc/self/mem, cannot be used: {e}")
            }
            InlineObstacle::Gate(e) => write!(f, "no executable memory at a fixed address: {e}"),
            InlineObstacle::Filter(e) => write!(f, "seccomp filters are refused: {e}"),
        }
    }
}

impl InlineObstacle {
    /// Whether a filter of system calls refuses userfaultfd: the kernel itself gives one for user mode to
    /// everybody.
    pub fn is_filter_on_userfaultfd(self) -> bool {
        self == InlineObstacle::Userfaultfd(Errno(libc::EPERM))
    }

    /// What would remove it, if anything does.
    pub fn fix(self) -> Option<&'static str> {
        match self {
            InlineObstacle::Processor => None,
            InlineObstacle::Userfaultfd(Errno(libc::EPERM)) => {
                Some("allow userfaultfd(2) in the container's seccomp profile")
            }
            InlineObstacle::Userfaultfd(_) | InlineObstacle::NoSignal | InlineObstacle::NoPager => {
                Some("use Linux 5.11 or newer, with CONFIG_USERFAULTFD")
            }
            InlineObstacle::Guards(Errno(libc::EOPNOTSUPP)) => Some("use Linux 6.13 or newer"),
            InlineObstacle::Guards(Errno(libc::ENOENT | libc::ENOTDIR | libc::EACCES)) => {
                Some("mount /proc so that /proc/self/mem can be opened")
            }
            InlineObstacle::Guards(_) => None,
            InlineObstacle::Gate(_) => Some("allow executable anonymous memory (SELinux: execmem)"),
            InlineObstacle::Filter(_) => Some("allow seccomp(2) in the container's seccomp profile"),
        }
    }
}

impl InlineFaults {
    /// Tries what inline faults need; a dozen system calls.
    pub fn try_now() -> InlineFaults {
        let wanted = uffd::SIGBUS | uffd::MOVE | uffd::PAGEFAULT_FLAG_WP;
        let userfaultfd = Uffd::open_user_mode(wanted).map(|fd| fd.features()).map_err(|e| Errno(e.0));
        InlineFaults {
            processor: cfg!(target_arch = "x86_64"),
            userfaultfd,
            guards: userfaultfd.is_err().then(guards),
            gate: gate(),
            filter: seccomp_filter().and_then(|()| filter()),
        }
    }

    /// What stands in the way of inline faults without userfaultfd; `None` when they work.
    pub fn segv_obstacle(&self) -> Option<InlineObstacle> {
        if !self.processor {
            return Some(InlineObstacle::Processor);
        }
        let guards = self.guards.unwrap_or_else(guards).map_err(InlineObstacle::Guards);
        guards.err().or_else(|| self.gate_obstacle())
    }

    fn gate_obstacle(&self) -> Option<InlineObstacle> {
        let gate = self.gate.map_err(InlineObstacle::Gate);
        gate.and_then(|()| self.filter.map_err(InlineObstacle::Filter)).err()
    }

    /// What stands in the way of inline faults with userfaultfd; `None` when they work.
    pub fn obstacle(&self) -> Option<InlineObstacle> {
        if !self.processor {
            return Some(InlineObstacle::Processor);
        }
        let features = match self.userfaultfd {
            Ok(features) => features,
            Err(e) => return Some(InlineObstacle::Userfaultfd(e)),
        };
        if features & uffd::SIGBUS == 0 {
            return Some(InlineObstacle::NoSignal);
        }
        if features & (uffd::MOVE | uffd::PAGEFAULT_FLAG_WP) == 0 {
            return Some(InlineObstacle::NoPager);
        }
        self.gate_obstacle()
    }

    /// Whether pages are moved in this mode; else they are copied, which is slower.
    pub fn moves(&self) -> bool {
        self.userfaultfd.is_ok_and(|features| features & uffd::MOVE != 0)
    }
}

fn guards() -> Tried {
    KernelPager::can_guard().map_err(|e| Errno(e.0))
}

/// Two probes at once would be in each other's way.
#[cfg(target_arch = "x86_64")]
static GATE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Writes a gate where no engine puts one, and removes it.
#[cfg(target_arch = "x86_64")]
fn gate() -> Tried {
    const SPACE: usize = 0x3c00_0000_0000;
    let _one = GATE.lock();
    crate::gate::stubs::Stubs::new(SPACE).map(drop).map_err(|e| Errno(e.0))
}

#[cfg(not(target_arch = "x86_64"))]
fn gate() -> Tried {
    Err(Errno(libc::ENOSYS))
}

pub(super) fn seccomp_filter() -> Tried {
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: reads one 32-bit word that outlives the call; nothing is installed.
    let asked =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    result_of(asked).map(drop)
}

/// Asks for a filter without giving one: a kernel that would take it fails with EFAULT, a kernel
/// that refuses says so first.
fn filter() -> Tried {
    let nothing = std::ptr::null::<libc::sock_fprog>();
    // SAFETY: the kernel reads the program, finds none and attaches nothing.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            nothing,
        )
    };
    match result_of(asked) {
        Ok(_) | Err(Errno(libc::EFAULT)) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe;
    use super::*;

    fn all_there() -> InlineFaults {
        InlineFaults {
            processor: true,
            userfaultfd: Ok(uffd::SIGBUS | uffd::MOVE),
            guards: Some(Ok(())),
            gate: Ok(()),
            filter: Ok(()),
        }
    }

    #[test]
    fn each_missing_thing_is_the_obstacle() {
        let refused = Errno(libc::EPERM);
        assert_eq!(all_there().obstacle(), None);
        let cases = [
            (InlineFaults { processor: false, ..all_there() }, InlineObstacle::Processor),
            (InlineFaults { userfaultfd: Err(refused), ..all_there() }, InlineObstacle::Userfaultfd(refused)),
            (InlineFaults { userfaultfd: Ok(uffd::MOVE), ..all_there() }, InlineObstacle::NoSignal),
            (InlineFaults { userfaultfd: Ok(uffd::SIGBUS), ..all_there() }, InlineObstacle::NoPager),
            (InlineFaults { gate: Err(refused), ..all_there() }, InlineObstacle::Gate(refused)),
            (InlineFaults { filter: Err(refused), ..all_there() }, InlineObstacle::Filter(refused)),
        ];
        for (inline, obstacle) in cases {
            assert_eq!(inline.obstacle(), Some(obstacle));
            assert!(!obstacle.to_string().is_empty());
        }
    }

    #[test]
    fn write_protection_stands_in_for_moving() {
        let copies = InlineFaults { userfaultfd: Ok(uffd::SIGBUS | uffd::PAGEFAULT_FLAG_WP), ..all_there() };
        assert_eq!((copies.obstacle(), copies.moves()), (None, false));
        assert!(all_there().moves());
    }

    #[test]
    fn auto_prefers_inline_then_the_thread_then_gives_up() {
        let mut p = probe().clone();
        p.userfaultfd.syscall = Ok(());
        p.userfaultfd.features = Ok(uffd::MOVE);
        p.inline_faults = all_there();
        assert_eq!(p.auto_faults(), Some(FaultMode::Inline));
        p.inline_faults.filter = Err(Errno(libc::EPERM));
        assert_eq!(p.auto_faults(), Some(FaultMode::Thread));
        (p.userfaultfd.syscall, p.userfaultfd.device) = (Err(Errno(libc::EPERM)), Err(Errno(libc::EACCES)));
        assert_eq!(p.auto_faults(), None);
    }

    #[test]
    fn guard_regions_do_where_no_userfaultfd_can_be_had_and_only_there() {
        let mut p = probe().clone();
        p.inline_faults = InlineFaults { userfaultfd: Err(Errno(libc::EPERM)), ..all_there() };
        (p.userfaultfd.syscall, p.userfaultfd.device) = (Err(Errno(libc::EPERM)), Ok(()));
        p.userfaultfd.features = Ok(uffd::MOVE);
        assert_eq!((p.auto_faults(), p.without_userfaultfd()), (Some(FaultMode::Thread), false));
        p.userfaultfd.device = Err(Errno(libc::ENOENT));
        assert_eq!((p.auto_faults(), p.without_userfaultfd()), (Some(FaultMode::Inline), true));
        for inline in [
            InlineFaults { guards: Some(Err(Errno(libc::EOPNOTSUPP))), ..p.inline_faults.clone() },
            InlineFaults { gate: Err(Errno(libc::EACCES)), ..p.inline_faults.clone() },
            InlineFaults { filter: Err(Errno(libc::EPERM)), ..p.inline_faults.clone() },
            InlineFaults { processor: false, ..p.inline_faults.clone() },
        ] {
            assert!(inline.segv_obstacle().is_some_and(|obstacle| !obstacle.to_string().is_empty()));
            p.inline_faults = inline;
            assert_eq!((p.auto_faults(), p.without_userfaultfd()), (None, false));
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn trying_leaves_no_memory_behind() {
        let tried = InlineFaults::try_now();
        let _one = GATE.lock();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.lines().any(|line| line.starts_with("3bff")), "{tried:?}: {maps}");
    }
}
