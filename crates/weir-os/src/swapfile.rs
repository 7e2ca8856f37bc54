//! The swap file: unnamed, readable by nobody else, with its blocks allocated when it is made or before the
//! first write, and read and written past the page cache where the file system allows that.

use crate::fds;
use crate::sys::{self, Errno, syscall};
use core::ffi::CStr;

/// File systems that live in RAM: swapping to them saves nothing.
const RAM_FILE_SYSTEMS: [(i64, &str); 3] =
    [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs")];

/// Offsets, lengths and addresses of direct I/O are multiples of this when the kernel does not say
/// (`STATX_DIOALIGN`, 6.1).
const ALIGN_UNKNOWN: usize = 4096;
/// Least alignment used, also for buffered I/O: a sector.
const ALIGN_MIN: usize = 512;
/// Tries of a call that a signal interrupts or that the kernel asks to repeat.
const TRIES: u32 = 100;

/// Why there is no swap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The folder lies on a file system in RAM; its name.
    InRam(&'static str),
    /// Fewer bytes are free in the folder's file system than asked for.
    NoSpace {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free for this user.
        free: u64,
    },
    /// The user's disk quota is used up.
    Quota,
    /// RLIMIT_FSIZE, or the file system's own limit on the size of a file, in bytes (0: not known).
    TooLarge(u64),
    /// The folder cannot be opened or is none.
    Folder(Errno),
    /// The file cannot be made in it.
    File(Errno),
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            OpenError::InRam(name) => write!(f, "it is on {name}, which is RAM itself"),
            OpenError::NoSpace { wanted, free } => {
                write!(f, "{wanted} bytes are wanted and {free} are free there")
            }
            OpenError::Quota => f.write_str("the disk quota is used up (EDQUOT)"),
            OpenError::TooLarge(0) => f.write_str("the file system takes no file that large (EFBIG)"),
            OpenError::TooLarge(limit) => write!(f, "files may have {limit} bytes at most (RLIMIT_FSIZE)"),
            OpenError::Folder(errno) => write!(f, "the folder cannot be opened: {errno}"),
            OpenError::File(errno) => write!(f, "the file cannot be made: {errno}"),
        }
    }
}

impl core::error::Error for OpenError {}

/// What the file system granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The file never had a name (`O_TMPFILE`); otherwise it had one until it was open.
    pub unnamed: bool,
    /// Past the page cache (`O_DIRECT`). Otherwise swapped pages lie in the page cache as well, for a
    /// time and outside the budget.
    pub direct: bool,
    /// All its blocks were allocated when it was made (`fallocate`). Otherwise the disk may turn out full
    /// later.
    pub preallocated: bool,
    /// Offsets, lengths and addresses of I/O are multiples of this, in bytes; a power of two.
    pub align: usize,
}

/// An open swap file of fixed length; closed, and gone, when dropped.
#[derive(Debug)]
pub struct SwapFile {
    fd: i32,
    bytes: u64,
    granted: Granted,
    /// Bytes of the disk that [`SwapFile::allocate`] leaves to others.
    leaves: u64,
}

impl SwapFile {
    /// Makes a file of `bytes` in the folder `dir`, with all its blocks.
    pub fn open(dir: &CStr, bytes: u64) -> Result<SwapFile, OpenError> {
        let mut file = SwapFile::create(dir, bytes)?;
        file.preallocate()?;
        Ok(file)
    }

    /// Makes a file of `bytes` that is one hole: [`SwapFile::allocate`] takes space for it before it is
    /// written, as long as `leaves` bytes stay free on the disk.
    pub fn open_empty(dir: &CStr, bytes: u64, leaves: u64) -> Result<SwapFile, OpenError> {
        let mut file = SwapFile::create(dir, bytes)?;
        file.leaves = leaves;
        file.extend()?;
        Ok(file)
    }

    /// A file of no length yet.
    fn create(dir: &CStr, bytes: u64) -> Result<SwapFile, OpenError> {
        let limit = sys::file_size_limit();
        if bytes > limit {
            return Err(OpenError::TooLarge(limit)); // beyond it the kernel sends SIGXFSZ
        }
        let folder = open_at(libc::AT_FDCWD, dir, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .map_err(OpenError::Folder)?;
        let made = make(folder);
        sys::close(folder);
        let (low, unnamed, direct) = made?;
        let fd = fds::keep(low);
        let granted = Granted { unnamed, direct, preallocated: false, align: align_of(fd, direct) };
        Ok(SwapFile { fd, bytes, granted, leaves: 0 })
    }

    fn preallocate(&mut self) -> Result<(), OpenError> {
        match allocate(self.fd, 0, self.bytes) {
            Ok(()) => self.granted.preallocated = true,
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.extend()?,
            Err(errno) => return Err(self.refusal(errno)),
        }
        Ok(())
    }

    fn extend(&self) -> Result<(), OpenError> {
        self.set_length(self.bytes).map_err(|errno| self.refusal(errno))
    }

    fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        // SAFETY: no pointers.
        unsafe { syscall(libc::SYS_ftruncate, [self.fd as usize, bytes as usize, 0, 0, 0, 0]) }.map(|_| ())
    }

    fn refusal(&self, errno: Errno) -> OpenError {
        match errno {
            Errno::ENOSPC => {
                // What fallocate took before it failed is given back when the file closes.
                let _ = self.set_length(0);
                let free = stat_of_open(self.fd).map_or(0, |stat| stat.free);
                OpenError::NoSpace { wanted: self.bytes, free }
            }
            Errno::EDQUOT => OpenError::Quota,
            Errno::EFBIG => OpenError::TooLarge(0),
            other => OpenError::File(other),
        }
    }

    /// The file's descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// EBADF: the program has closed the descriptor past Weir, and it may name a file of its own. To be asked
    /// before anything is written.
    pub fn is_ours(&self) -> Result<(), Errno> {
        if fds::is_intact(self.fd) { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the file system granted.
    pub fn granted(&self) -> Granted {
        self.granted
    }

    /// Claims a number for this process, as long as it lives, does not `exec` and has the file open; `false`:
    /// another process has it. Claims of this process's own threads do not exclude each other. It is a record
    /// lock far behind the end of the file: known to the kernel, whatever namespaces the processes are in.
    pub fn claim(&self, number: u32) -> bool {
        self.lock(libc::F_WRLCK, number).is_ok()
    }

    /// Gives a claim of this process up.
    pub fn unclaim(&self, number: u32) {
        let _ = self.lock(libc::F_UNLCK, number);
    }

    fn lock(&self, kind: libc::c_int, number: u32) -> Result<(), Errno> {
        const BEHIND: i64 = 1 << 62;
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: BEHIND + i64::from(number),
            l_len: 1,
            l_pid: 0,
        };
        let args = [self.fd as usize, libc::F_SETLK as usize, core::ptr::from_ref(&lock) as usize, 0, 0, 0];
        // SAFETY: the kernel reads the live structure.
        unsafe { syscall(libc::SYS_fcntl, args) }.map(|_| ())
    }

    /// Gives the blocks of a range back to the file system; it reads as zeros. EOPNOTSUPP: not here.
    pub fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        const PUNCH_HOLE_KEEP_SIZE: usize = 2 | 1;
        self.is_ours()?;
        fallocate(self.fd, PUNCH_HOLE_KEEP_SIZE, offset, len)
    }

    /// Allocates the blocks of a range that is a hole. ENOSPC: the disk is full, or would be too full for
    /// others.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.is_ours()?;
        if self.leaves > 0
            && stat_of_open(self.fd).is_ok_and(|disk| disk.free < self.leaves.saturating_add(len))
        {
            return Err(Errno::ENOSPC);
        }
        allocate(self.fd, offset, len)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        fds::close(self.fd);
    }
}

/// Room on a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Free for this user.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Room in the file system of the folder, for a swap file that sizes itself.
pub fn space(dir: &CStr) -> Result<Space, Errno> {
    let mut stat = Statfs::default();
    let to = core::ptr::from_mut(&mut stat) as usize;
    // SAFETY: the kernel reads the path and writes the live structure.
    unsafe { syscall(libc::SYS_statfs, [dir.as_ptr() as usize, to, 0, 0, 0, 0])? };
    Ok(Space { free: stat.summary().free, total: stat.blocks.saturating_mul(stat.unit()) })
}

/// `struct statfs` of 64-bit kernels.
#[repr(C)]
#[derive(Default)]
struct Statfs {
    kind: i64,
    block_bytes: i64,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    files: u64,
    files_free: u64,
    id: [i32; 2],
    name_max: i64,
    fragment_bytes: i64,
    flags: i64,
    spare: [i64; 4],
}
const _: () = assert!(size_of::<Statfs>() == 120);

struct FileSystem {
    ram: Option<&'static str>,
    free: u64,
}

impl Statfs {
    fn unit(&self) -> u64 {
        let unit = if self.fragment_bytes > 0 { self.fragment_bytes } else { self.block_bytes };
        unit.max(0) as u64
    }

    fn summary(&self) -> FileSystem {
        FileSystem {
            ram: RAM_FILE_SYSTEMS.iter().find(|(kind, _)| *kind == self.kind).map(|(_, name)| *name),
            free: self.blocks_available.saturating_mul(self.unit()),
        }
    }
}

fn stat_of_open(fd: i32) -> Result<FileSystem, Errno> {
    let mut stat = Statfs::default();
    let to = core::ptr::from_mut(&mut stat) as usize;
    // SAFETY: the kernel writes the live structure.
    unsafe { syscall(libc::SYS_fstatfs, [fd as usize, to, 0, 0, 0, 0])? };
    Ok(stat.summary())
}

fn open_at(folder: i32, name: &CStr, flags: i32) -> Result<i32, Errno> {
    const MODE: usize = 0o600;
    retried(|| {
        let args = [folder as isize as usize, name.as_ptr() as usize, flags as usize, MODE, 0, 0];
        // SAFETY: the kernel reads the name.
        unsafe { syscall(libc::SYS_openat, args) }
    })
    .map(|fd| fd as i32)
}

/// A new file in the folder: (descriptor, never had a name, past the page cache).
fn make(folder: i32) -> Result<(i32, bool, bool), OpenError> {
    if let Some(name) = stat_of_open(folder).map_err(OpenError::Folder)?.ram {
        return Err(OpenError::InRam(name));
    }
    const PLAIN: i32 = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let unnamed = PLAIN | libc::O_TMPFILE | libc::O_EXCL;
    let mut last = Errno::EINVAL;
    for direct in [true, false] {
        let extra = if direct { libc::O_DIRECT } else { 0 };
        match open_at(folder, c".", unnamed | extra) {
            Ok(fd) => return Ok((fd, true, direct)),
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => return Err(OpenError::File(errno)),
        }
        match make_and_unlink(folder, PLAIN | extra) {
            Ok(fd) => return Ok((fd, false, direct)),
            Err(errno) => last = errno,
        }
    }
    Err(OpenError::File(last))
}

/// For file systems without `O_TMPFILE`: the name lives as short as can be, and cannot be guessed.
fn make_and_unlink(folder: i32, flags: i32) -> Result<i32, Errno> {
    const PREFIX: &[u8] = b".weir-swap-";
    let (mut random, mut name) = ([0; 8], [0; 32]);
    sys::random(&mut random)?;
    name[..PREFIX.len()].copy_from_slice(PREFIX);
    for (i, byte) in random.iter().enumerate() {
        name[PREFIX.len() + 2 * i] = b'a' + (byte >> 4);
        name[PREFIX.len() + 2 * i + 1] = b'a' + (byte & 15);
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::EINVAL)?;
    let opened = open_at(folder, name, flags | libc::O_CREAT | libc::O_EXCL);
    // A refused O_DIRECT leaves the new file behind. SAFETY: the kernel reads the name.
    let _ = unsafe { syscall(libc::SYS_unlinkat, [folder as usize, name.as_ptr() as usize, 0, 0, 0, 0]) };
    opened
}

/// The first words of `struct statx` do not matter here; those at 0x98 are the alignments.
#[repr(C, align(8))]
struct Statx {
    mask: u32,
    before: [u8; 0x98 - 4],
    memory_align: u32,
    offset_align: u32,
    after: [u8; 0x100 - 0xa0],
}
const _: () = assert!(size_of::<Statx>() == 256);

fn align_of(fd: i32, direct: bool) -> usize {
    const STATX_DIOALIGN: usize = 0x2000;
    if !direct {
        return ALIGN_MIN;
    }
    let mut stat = Statx { mask: 0, before: [0; 148], memory_align: 0, offset_align: 0, after: [0; 96] };
    let (empty, to) = (c"".as_ptr() as usize, core::ptr::from_mut(&mut stat) as usize);
    let args = [fd as usize, empty, libc::AT_EMPTY_PATH as usize, STATX_DIOALIGN, to, 0];
    // SAFETY: the kernel reads the empty path and writes the live structure.
    let asked = unsafe { syscall(libc::SYS_statx, args) };
    let align = stat.memory_align.max(stat.offset_align) as usize;
    if asked.is_err() || stat.mask & STATX_DIOALIGN as u32 == 0 || !align.is_power_of_two() {
        return ALIGN_UNKNOWN;
    }
    align.max(ALIGN_MIN)
}

fn allocate(fd: i32, offset: u64, len: u64) -> Result<(), Errno> {
    fallocate(fd, 0, offset, len)
}

fn fallocate(fd: i32, mode: usize, offset: u64, len: u64) -> Result<(), Errno> {
    let args = [fd as usize, mode, offset as usize, len as usize, 0, 0];
    // SAFETY: no pointers.
    retried(|| unsafe { syscall(libc::SYS_fallocate, args) }).map(|_| ())
}

/// Repeats a call that was interrupted, a bounded number of times.
fn retried(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let mut tries = TRIES;
    loop {
        match call() {
            Err(Errno::EINTR | Errno::EAGAIN) if tries > 0 => tries -= 1,
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder on a real disk, unlike many a `/tmp`.
    const DISK: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_MANIFEST_DIR"), "\0").as_bytes())
    {
        Ok(folder) => folder,
        Err(_) => panic!("a path without NUL"),
    };

    #[test]
    fn a_file_system_in_ram_is_refused_by_name() {
        let refused = SwapFile::open(c"/dev/shm", 1 << 20).unwrap_err();
        assert_eq!(refused, OpenError::InRam("tmpfs"));
    }

    #[test]
    fn a_missing_folder_and_a_file_in_its_place_are_refused() {
        assert_eq!(
            SwapFile::open(c"/nowhere/at/all", 1 << 20).unwrap_err(),
            OpenError::Folder(Errno::ENOENT)
        );
        assert_eq!(
            SwapFile::open(c"/proc/self/status", 1 << 20).unwrap_err(),
            OpenError::Folder(Errno::ENOTDIR)
        );
    }

    #[test]
    fn more_than_the_disk_has_is_refused_before_anything_starts() {
        let free = space(DISK).unwrap().free;
        match SwapFile::open(DISK, free + (1 << 40)).unwrap_err() {
            OpenError::NoSpace { wanted, free: left } => assert!(wanted > free && left > 0),
            OpenError::TooLarge(_) => {} // file systems whose largest file is smaller than the disk
            other => panic!("{other:?}"),
        }
        assert!(space(DISK).unwrap().free >= free / 2, "the refused file's blocks are free again");
    }

    #[test]
    fn the_file_has_no_name_its_blocks_and_the_length_asked_for() {
        let file = SwapFile::open(DISK, 4 << 20).unwrap();
        let granted = file.granted();
        assert!(granted.align.is_power_of_two() && granted.align >= 512, "{granted:?}");
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.fd())).unwrap();
        assert!(link.to_string_lossy().ends_with("(deleted)"), "{link:?}");
        assert_eq!(file.bytes(), 4 << 20);
        if granted.preallocated {
            file.punch(0, 2 << 20).unwrap();
            file.allocate(0, 2 << 20).unwrap();
        }
    }

    #[test]
    fn an_empty_file_has_its_length_and_takes_space_part_by_part() {
        let file = SwapFile::open_empty(DISK, 64 << 20, 1 << 20).unwrap();
        let blocks = || {
            use std::os::unix::fs::MetadataExt;
            let stat = std::fs::metadata(format!("/proc/self/fd/{}", file.fd())).unwrap();
            (stat.len(), stat.blocks() * 512)
        };
        assert_eq!((blocks(), file.granted().preallocated), ((64 << 20, 0), false));
        match file.allocate(2 << 20, 2 << 20) {
            Ok(()) => assert_eq!(blocks(), (64 << 20, 2 << 20)),
            Err(errno) => assert_eq!(errno, Errno::EOPNOTSUPP),
        }
        let greedy = SwapFile::open_empty(DISK, 64 << 20, u64::MAX).unwrap();
        assert_eq!(greedy.allocate(0, 2 << 20), Err(Errno::ENOSPC), "others need the rest");
    }

    #[test]
    fn without_tmpfile_the_name_is_gone_once_the_file_is_open() {
        let folder = open_at(libc::AT_FDCWD, DISK, libc::O_PATH | libc::O_DIRECTORY).unwrap();
        let fd = make_and_unlink(folder, libc::O_RDWR | libc::O_CLOEXEC).unwrap();
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        assert!(link.to_string_lossy().contains(".weir-swap-"), "{link:?}");
        assert!(link.to_string_lossy().ends_with("(deleted)"), "{link:?}");
        sys::close(fd);
        sys::close(folder);
    }
}
