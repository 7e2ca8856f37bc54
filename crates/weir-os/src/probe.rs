//! What this kernel and these permissions allow, decided once.
//!
//! Every question is asked by trying the thing itself (opening a userfaultfd, setting up a ring) rather than
//! by reading version numbers: distributions backport features and containers take them away. Whatever is
//! refused keeps its [`Errno`], so that a message can name it.

mod around;
pub mod calls;
mod cgroup;
mod errno;
mod faults;

use std::ffi::c_long;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

pub use around::Around;
pub use cgroup::{CgroupLimit, CgroupVersion, MemoryGroup, memory_groups_of_self};
use errno::result_of;
pub use errno::{Errno, Tried};
use faults::seccomp_filter;
pub use faults::{FaultMode, InlineFaults, InlineObstacle};

/// Bits of `uffdio_api.features` by name, from `include/uapi/linux/userfaultfd.h`.
pub const UFFD_FEATURE_NAMES: [(&str, u64); 17] = [
    ("PAGEFAULT_FLAG_WP", 1 << 0),
    ("EVENT_FORK", 1 << 1),
    ("EVENT_REMAP", 1 << 2),
    ("EVENT_REMOVE", 1 << 3),
    ("MISSING_HUGETLBFS", 1 << 4),
    ("MISSING_SHMEM", 1 << 5),
    ("EVENT_UNMAP", 1 << 6),
    ("SIGBUS", 1 << 7),
    ("THREAD_ID", 1 << 8),
    ("MINOR_HUGETLBFS", 1 << 9),
    ("MINOR_SHMEM", 1 << 10),
    ("EXACT_ADDRESS", 1 << 11),
    ("WP_HUGETLBFS_SHMEM", 1 << 12),
    ("WP_UNPOPULATED", 1 << 13),
    ("POISON", 1 << 14),
    ("WP_ASYNC", 1 << 15),
    ("MOVE", 1 << 16),
];

/// Version of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The whole release text, as `uname -r` prints it.
    pub release: String,
}

impl KernelVersion {
    /// Whether the kernel is at least `major.minor`.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }

    fn parse(release: &str) -> KernelVersion {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
        let major = numbers.next().unwrap_or(0);
        let minor = numbers.next().unwrap_or(0);
        KernelVersion { major, minor, release: release.to_owned() }
    }
}

/// The ways to a userfaultfd, each tried.
#[derive(Clone, Debug)]
pub struct Userfaultfd {
    /// `userfaultfd(2)` that also sees faults made by the kernel on the program's behalf.
    pub syscall: Tried,
    /// The same through `/dev/userfaultfd`.
    pub device: Tried,
    /// `userfaultfd(2)` with `UFFD_USER_MODE_ONLY`.
    pub user_mode_only: Tried,
    /// Feature bits that the kernel offers ([`UFFD_FEATURE_NAMES`]), through whichever way opened.
    pub features: Result<u64, Errno>,
    /// `vm.unprivileged_userfaultfd`, if the kernel has it.
    pub unprivileged_sysctl: Option<u64>,
}

impl Userfaultfd {
    /// Whether a userfaultfd that sees kernel-mode faults too can be opened: what a thread that serves faults
    /// needs.
    pub fn full(&self) -> bool {
        self.syscall.is_ok() || self.device.is_ok()
    }

    /// Whether the kernel offers the named feature.
    pub fn has(&self, name: &str) -> bool {
        let offered = self.features.unwrap_or(0);
        UFFD_FEATURE_NAMES.iter().any(|(n, bit)| *n == name && offered & bit != 0)
    }

    /// Names of all features offered.
    pub fn feature_names(&self) -> Vec<&'static str> {
        let offered = self.features.unwrap_or(0);
        UFFD_FEATURE_NAMES.iter().filter(|(_, bit)| offered & bit != 0).map(|(name, _)| *name).collect()
    }
}

/// When the kernel uses transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpMode {
    /// For all memory.
    Always,
    /// Where a program asks.
    Madvise,
    /// For no memory.
    Never,
    /// The kernel has none, or its setting cannot be read.
    Unknown,
}

impl ThpMode {
    fn parse(text: &str) -> ThpMode {
        // The file shows all choices and puts the one in force in brackets.
        match text.split(['[', ']']).nth(1) {
            Some("always") => ThpMode::Always,
            Some("madvise") => ThpMode::Madvise,
            Some("never") => ThpMode::Never,
            _ => ThpMode::Unknown,
        }
    }
}

impl fmt::Display for ThpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ThpMode::Always => "always",
            ThpMode::Madvise => "madvise",
            ThpMode::Never => "never",
            ThpMode::Unknown => "unknown",
        })
    }
}

/// Everything found out about this kernel, these permissions and this process's limits.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The running kernel.
    pub kernel: KernelVersion,
    /// The ways to a userfaultfd.
    pub userfaultfd: Userfaultfd,
    /// `process_madvise(MADV_DONTNEED)` on the own process: dropping many ranges with one call.
    pub process_madvise_self: Tried,
    /// Setting up an io_uring.
    pub io_uring: Tried,
    /// `kernel.io_uring_disabled`: 0 for nobody; a kernel before 6.6 has no such setting.
    pub io_uring_disabled: Option<u64>,
    /// Seccomp filters that trap.
    pub seccomp_filter: Tried,
    /// What resolving faults in the faulting thread needs.
    pub inline_faults: InlineFaults,
    /// Transparent huge pages.
    pub thp: ThpMode,
    /// RAM of the machine, in bytes.
    pub ram_bytes: u64,
    /// Memory limit of the process's own control group, if there is one below the machine's RAM.
    pub cgroup_limit: Option<CgroupLimit>,
    /// Soft `RLIMIT_AS`, in bytes; none when unlimited.
    pub rlimit_as_bytes: Option<u64>,
    /// Soft `RLIMIT_MEMLOCK`, in bytes; none when unlimited.
    pub rlimit_memlock_bytes: Option<u64>,
    /// `vm.overcommit_memory`: 0 heuristic, 1 always, 2 never.
    pub overcommit_memory: Option<u64>,
    /// Most mappings of a process: `vm.max_map_count`.
    pub max_map_count: Option<u64>,
    /// Swap devices and files in use by the kernel.
    pub swap_devices: Vec<PathBuf>,
}

impl Probe {
    /// Whether a thread can serve faults.
    pub fn thread_faults(&self) -> bool {
        let u = &self.userfaultfd;
        u.full() && (u.has("MOVE") || u.has("PAGEFAULT_FLAG_WP"))
    }

    /// What `--faults auto` takes; `None` when neither mode is possible.
    pub fn auto_faults(&self) -> Option<FaultMode> {
        match self.inline_faults.obstacle() {
            None => Some(FaultMode::Inline),
            Some(_) if self.thread_faults() => Some(FaultMode::Thread),
            Some(_) => self.without_userfaultfd().then_some(FaultMode::Inline),
        }
    }

    /// Whether `--pager auto` goes without userfaultfd: none can be opened, and guard regions will do.
    pub fn without_userfaultfd(&self) -> bool {
        let inline = &self.inline_faults;
        inline.userfaultfd.is_err() && !self.userfaultfd.full() && inline.segv_obstacle().is_none()
    }
}

/// What this kernel can do; found out on the first call, remembered afterwards.
pub fn probe() -> &'static Probe {
    static PROBE: OnceLock<Probe> = OnceLock::new();
    PROBE.get_or_init(probe_now)
}

/// Finds everything out anew; some forty system calls.
pub fn probe_now() -> Probe {
    let ram_bytes = ram_bytes();
    Probe {
        kernel: KernelVersion::parse(&read_trimmed("/proc/sys/kernel/osrelease").unwrap_or_default()),
        userfaultfd: userfaultfd(),
        process_madvise_self: process_madvise_self(),
        io_uring: io_uring(),
        io_uring_disabled: read_number("/proc/sys/kernel/io_uring_disabled"),
        seccomp_filter: seccomp_filter(),
        inline_faults: InlineFaults::try_now(),
        thp: ThpMode::parse(&read_trimmed("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default()),
        ram_bytes,
        cgroup_limit: cgroup::limit_of_self(ram_bytes),
        rlimit_as_bytes: soft_limit(libc::RLIMIT_AS),
        rlimit_memlock_bytes: soft_limit(libc::RLIMIT_MEMLOCK),
        overcommit_memory: read_number("/proc/sys/vm/overcommit_memory"),
        max_map_count: read_number("/proc/sys/vm/max_map_count"),
        swap_devices: swap_devices(&fs::read_to_string("/proc/swaps").unwrap_or_default()),
    }
}

/// RAM that this process may use, in bytes: the machine's, or its control group's limit if that is less. Zero
/// if `/proc` cannot be read.
pub fn ram_limit_bytes() -> u64 {
    let ram = ram_bytes();
    cgroup::limit_of_self(ram).map_or(ram, |limit| limit.bytes.min(ram))
}

/// What limits this process's RAM: bytes, and who says so.
pub fn surroundings() -> (u64, String) {
    let ram = ram_bytes();
    match cgroup::limit_of_self(ram) {
        Some(limit) => (limit.bytes, format!("the limit of its control group ({})", limit.file.display())),
        None => (ram, "the machine's RAM".to_owned()),
    }
}

/// Whether a userfaultfd that sees kernel-mode faults can be opened. Cheaper than [`probe`]: one or two
/// system calls. The error is that of `/dev/userfaultfd` and of the system call, in this order.
pub fn can_open_userfaultfd() -> Result<(), (Errno, Errno)> {
    let syscall = match open_syscall(0) {
        Ok(_) => return Ok(()),
        Err(e) => e,
    };
    match open_device() {
        Ok(_) => Ok(()),
        Err(device) => Err((device, syscall)),
    }
}

fn read_trimmed(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn read_number(path: &str) -> Option<u64> {
    read_trimmed(path)?.parse().ok()
}

fn ram_bytes() -> u64 {
    fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total_bytes(&text)).unwrap_or(0)
}

fn mem_total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Paths in the first column of `/proc/swaps`; the kernel writes blanks in them as `\040`.
fn swap_devices(text: &str) -> Vec<PathBuf> {
    let paths = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    paths.map(|path| PathBuf::from(path.replace("\\040", " "))).collect()
}

/// A file descriptor of a probe; closed when dropped.
struct Fd(c_long);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the number came from a system call that opened it for us, and nobody else holds it.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// `_IOWR(0xAA, 0x3F, struct uffdio_api)`; the struct has three 64-bit words.
const UFFDIO_API: c_long = 0xC018_AA3F;
/// `_IO(0xAA, 0x00)`: makes a userfaultfd from the device.
const USERFAULTFD_IOC_NEW: c_long = 0xAA00;
const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: c_long = 1;
const OPEN_FLAGS: c_long = (libc::O_CLOEXEC | libc::O_NONBLOCK) as c_long;

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

const _: () = assert!(size_of::<UffdioApi>() == (UFFDIO_API as usize >> 16) & 0x3FFF);

fn open_syscall(extra_flags: c_long) -> Result<Fd, Errno> {
    // SAFETY: userfaultfd(2) takes flags only and touches no memory of ours.
    result_of(unsafe { libc::syscall(libc::SYS_userfaultfd, OPEN_FLAGS | extra_flags) }).map(Fd)
}

fn open_device() -> Result<Fd, Errno> {
    let path = c"/dev/userfaultfd";
    // SAFETY: the path is a terminated string that outlives the call.
    let opened = unsafe {
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC)
    };
    let device = Fd(result_of(opened)?);
    // SAFETY: this ioctl takes its flags by value.
    result_of(unsafe { libc::syscall(libc::SYS_ioctl, device.0, USERFAULTFD_IOC_NEW, OPEN_FLAGS) }).map(Fd)
}

fn features_of(uffd: &Fd) -> Result<u64, Errno> {
    let mut api = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
    // SAFETY: `api` has the size that the ioctl's number states (asserted above) and outlives the call.
    result_of(unsafe { libc::syscall(libc::SYS_ioctl, uffd.0, UFFDIO_API, &raw mut api) })?;
    Ok(api.features)
}

fn userfaultfd() -> Userfaultfd {
    let syscall = open_syscall(0);
    let device = open_device();
    let user_mode_only = open_syscall(UFFD_USER_MODE_ONLY);
    let opened = syscall.as_ref().or(device.as_ref()).or(user_mode_only.as_ref());
    let features = opened.map_err(|e| *e).and_then(features_of);
    Userfaultfd {
        features,
        syscall: syscall.map(drop),
        device: device.map(drop),
        user_mode_only: user_mode_only.map(drop),
        unprivileged_sysctl: read_number("/proc/sys/vm/unprivileged_userfaultfd"),
    }
}

fn process_madvise_self() -> Tried {
    // SAFETY: getpid and pidfd_open take numbers only.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::syscall(libc::SYS_getpid), 0) };
    let pidfd = Fd(result_of(opened)?);
    let len = 4096;
    // SAFETY: a fresh private mapping of one page, at an address of the kernel's choice. Raw, so that a
    // preloaded mmap never sees it.
    let page = result_of(unsafe {
        libc::syscall(
            libc::SYS_mmap,
            0,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    })?;
    let range = libc::iovec { iov_base: page as *mut libc::c_void, iov_len: len };
    // SAFETY: the range is the page mapped above, which holds nothing.
    let advised = result_of(unsafe {
        libc::syscall(libc::SYS_process_madvise, pidfd.0, &raw const range, 1, libc::MADV_DONTNEED, 0)
    });
    // SAFETY: unmaps the page mapped above; no reference to it exists.
    unsafe { libc::syscall(libc::SYS_munmap, page, len) };
    advised.map(drop)
}

fn io_uring() -> Tried {
    // struct io_uring_params is 120 bytes, all zero for "no flags".
    let mut params = [0_u32; 30];
    // SAFETY: `params` has the size the kernel reads and writes and outlives the call.
    let fd = result_of(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) })?;
    drop(Fd(fd));
    Ok(())
}

fn soft_limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };
    // SAFETY: writes one rlimit64 that outlives the call; pid 0 is the caller.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, 0, &raw mut limit) };
    (limit.rlim_cur != libc::RLIM64_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_compare_by_number_not_by_text() {
        let v = KernelVersion::parse("6.18.44-fc-v595");
        assert_eq!((v.major, v.minor), (6, 18));
        assert!(v.at_least(6, 8) && v.at_least(5, 19) && v.at_least(6, 18));
        assert!(!v.at_least(6, 19) && !v.at_least(7, 0));
        assert_eq!(KernelVersion::parse("").major, 0);
        assert_eq!(KernelVersion::parse("7.0-rc1").minor, 0);
    }

    #[test]
    fn huge_page_mode_is_the_word_in_brackets() {
        assert_eq!(ThpMode::parse("always [madvise] never"), ThpMode::Madvise);
        assert_eq!(ThpMode::parse("[always] madvise never"), ThpMode::Always);
        assert_eq!(ThpMode::parse("always madvise [never]"), ThpMode::Never);
        assert_eq!(ThpMode::parse(""), ThpMode::Unknown);
    }

    #[test]
    fn memory_total_is_read_in_bytes() {
        assert_eq!(mem_total_bytes("MemFree: 1 kB\nMemTotal:       24684356 kB\n"), Some(24_684_356 * 1024));
        assert_eq!(mem_total_bytes("MemTotal: many kB"), None);
        assert_eq!(mem_total_bytes(""), None);
    }

    #[test]
    fn swap_paths_are_listed_with_their_blanks() {
        let text = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0  partition 1 0 5\n/var/my\\040swap \
            file 2 0 -2\n";
        assert_eq!(swap_devices(text), [PathBuf::from("/dev/zram0"), PathBuf::from("/var/my swap")]);
        assert!(swap_devices("Filename Type Size Used Priority\n").is_empty());
    }

    #[test]
    fn feature_names_follow_the_bits() {
        let fd = Userfaultfd {
            syscall: Ok(()),
            device: Err(Errno(libc::EACCES)),
            user_mode_only: Ok(()),
            features: Ok((1 << 16) | 1),
            unprivileged_sysctl: None,
        };
        assert!(fd.full() && fd.has("MOVE") && fd.has("PAGEFAULT_FLAG_WP"));
        assert!(!fd.has("POISON") && !fd.has("NO_SUCH"));
        assert_eq!(fd.feature_names(), ["PAGEFAULT_FLAG_WP", "MOVE"]);
    }

    #[test]
    fn the_running_kernel_answers_every_question() {
        let p = probe();
        assert!(p.kernel.at_least(4, 0), "{:?}", p.kernel);
        assert!(p.ram_bytes > 0 && ram_limit_bytes() > 0 && ram_limit_bytes() <= p.ram_bytes);
        assert_eq!(can_open_userfaultfd().is_ok(), p.userfaultfd.full());
        // A kernel with a feature list has at least one way in, and the other way round.
        let any = p.userfaultfd.full() || p.userfaultfd.user_mode_only.is_ok();
        assert_eq!(any, p.userfaultfd.features.is_ok());
        assert!(std::ptr::eq(p, probe()), "decided once");
    }

    #[test]
    fn probing_leaves_no_descriptor_open() {
        let count = || fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
        probe_now();
        let before = count();
        for _ in 0..8 {
            probe_now();
        }
        // Other tests of this process may hold a file or two at either moment; eight leaking rounds would
        // show as dozens.
        assert!(count() < before + 8, "{before} -> {}", count());
    }
}
