//! Calls whose buffers exceed what one call may pin: the transfers among them are made in pieces.

use super::table::word;
use crate::sys::{Errno, syscall_raw};

/// One piece of a transfer: a plain call.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    nr: usize,
    args: [usize; 6],
    /// Where its buffer begins.
    pub addr: usize,
    /// Bytes of it.
    pub len: usize,
    /// Whether the transfer must end with it: another piece could wait for data that may never come.
    pub last: bool,
}

impl Piece {
    /// Makes it end earlier.
    pub fn cut(&mut self, len: usize) {
        let at = if self.nr == libc::SYS_getrandom as usize { 1 } else { 2 };
        (self.len, self.args[at]) = (len, len);
    }
}

/// How a transfer is told where in the file it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Where the descriptor is, or nowhere.
    Here,
    /// At an offset: argument of the call.
    Offset(usize),
}

/// `struct iovec`: address and bytes.
const ELEMENT_BYTES: usize = 16;
/// Elements that are read at a time: the stack may be a signal's.
const AT_ONCE: usize = 16;

/// The element of a list that a transfer has come to, and those that were read with it.
#[derive(Debug, Default)]
struct Place {
    index: usize,
    /// Bytes in the elements before it.
    before: usize,
    elements: [[u8; ELEMENT_BYTES]; AT_ONCE],
    /// Which elements these are: the first, and one past the last.
    read: (usize, usize),
}

/// Copies the program's memory: the table of buffers, which may be out.
pub type Read<'a> = &'a mut dyn FnMut(usize, &mut [u8]) -> Result<(), Errno>;

/// The pieces of a call.
#[derive(Debug)]
pub struct Parts {
    args: [usize; 6],
    /// The plain call that does a piece, or `None`: the call is not a transfer.
    plain: Option<usize>,
    at: At,
    /// Elements of a list of buffers; 0: one buffer.
    list: usize,
    place: Place,
    /// It reads from something that can make a reader wait: not a file on a disk.
    waits: bool,
}

impl Parts {
    /// For a call. One buffer: `read` and its like; a list: `readv` and its like.
    pub fn of(nr: usize, args: &[usize; 6]) -> Parts {
        let (plain, at, is_list, reads) = match nr as libc::c_long {
            n @ (libc::SYS_read | libc::SYS_recvfrom | libc::SYS_getrandom) => (n, At::Here, false, true),
            n @ (libc::SYS_write | libc::SYS_sendto) => (n, At::Here, false, false),
            n @ libc::SYS_pread64 => (n, At::Offset(3), false, true),
            n @ libc::SYS_pwrite64 => (n, At::Offset(3), false, false),
            libc::SYS_readv => (libc::SYS_read, At::Here, true, true),
            libc::SYS_writev => (libc::SYS_write, At::Here, true, false),
            libc::SYS_preadv => (libc::SYS_pread64, At::Offset(3), true, true),
            libc::SYS_pwritev => (libc::SYS_pwrite64, At::Offset(3), true, false),
            libc::SYS_preadv2 if args[3] as isize == -1 => (libc::SYS_read, At::Here, true, true),
            libc::SYS_pwritev2 if args[3] as isize == -1 => (libc::SYS_write, At::Here, true, false),
            libc::SYS_preadv2 => (libc::SYS_pread64, At::Offset(3), true, true),
            libc::SYS_pwritev2 => (libc::SYS_pwrite64, At::Offset(3), true, false),
            _ => (-1, At::Here, false, false),
        };
        let plain = usize::try_from(plain).ok();
        let list = if is_list { args[2].clamp(1, 1024) } else { 0 };
        let waits = reads && !is_on_disk(args[0]);
        Parts { args: *args, plain, at, list, place: Place::default(), waits }
    }

    /// Whether the call is a transfer.
    pub fn known(&self) -> bool {
        self.plain.is_some()
    }

    /// The piece that begins `done` bytes into the transfer, no less than those of the piece before, at most
    /// `most` bytes; `None` at its end. Errors are those of `read`.
    pub fn next(&mut self, done: usize, most: usize, read: Read<'_>) -> Result<Option<Piece>, Errno> {
        let Some(nr) = self.plain else { return Ok(None) };
        let random = nr == libc::SYS_getrandom as usize;
        let (buffer, length) = if random { (0, 1) } else { (1, 2) };
        let (addr, len) = match self.list {
            0 => (self.args[buffer].wrapping_add(done), self.args[length].saturating_sub(done)),
            n => self.element(n, done, read)?,
        };
        if len == 0 && (done > 0 || self.list > 0) {
            return Ok(None);
        }
        let len = len.min(most);
        let mut args = self.args;
        (args[buffer], args[length]) = (addr, len);
        if self.list > 0 {
            args[3..].fill(0);
        }
        if let At::Offset(i) = self.at {
            args[i] = self.args[i].wrapping_add(done);
        }
        Ok(Some(Piece { nr, args, addr, len, last: self.waits && !random }))
    }

    /// The buffer that holds byte `done` of a list, from that byte on; no bytes at the list's end.
    fn element(&mut self, n: usize, done: usize, read: Read<'_>) -> Result<(usize, usize), Errno> {
        while self.place.index < n {
            let (base, len) = self.at_place(n, read)?;
            let end = self.place.before.saturating_add(len);
            if done < end {
                let skip = done - self.place.before;
                return Ok((base.wrapping_add(skip), len - skip));
            }
            self.place.before = end;
            self.place.index += 1;
        }
        Ok((0, 0))
    }

    /// The element that the transfer has come to.
    fn at_place(&mut self, n: usize, read: Read<'_>) -> Result<(usize, usize), Errno> {
        let Place { index, elements, read: known, .. } = &mut self.place;
        if *index >= known.1 {
            let more = (n - *index).min(AT_ONCE);
            let at = self.args[1].wrapping_add(*index * ELEMENT_BYTES);
            read(at, elements[..more].as_flattened_mut())?;
            *known = (*index, *index + more);
        }
        let [base, len] = [0, 8].map(|at| word(&elements[*index - known.0], at));
        Ok((base, len))
    }
}

/// Whether a descriptor is a regular file or a block device.
fn is_on_disk(fd: usize) -> bool {
    // SAFETY: plain data, valid when zero.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    let at = core::ptr::from_mut(&mut st) as usize;
    // SAFETY: the kernel fills the live structure.
    let r = unsafe { syscall_raw(libc::SYS_fstat, [fd, at, 0, 0, 0, 0]) };
    r == 0 && matches!(st.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK)
}

/// Makes the call of a piece. Returns the kernel's result.
pub fn make(piece: &Piece) -> isize {
    // SAFETY: a part of a call that the program made itself; the kernel checks the buffer.
    unsafe { syscall_raw(piece.nr as libc::c_long, piece.args) }
}

#[cfg(test)]
mod tests {
    use super::super::read_own;
    use super::*;

    fn pieces(nr: libc::c_long, args: [usize; 6], most: usize, total: usize) -> Vec<(usize, usize, usize)> {
        let mut parts = Parts::of(nr as usize, &args);
        let (mut done, mut seen) = (0, Vec::new());
        while let Some(p) = parts.next(done, most, &mut read_own).unwrap() {
            seen.push((p.addr, p.len, p.args[3]));
            done += p.len;
            assert!(done <= total);
        }
        seen
    }

    #[test]
    fn one_buffer_is_cut_and_offsets_move_along() {
        assert_eq!(
            pieces(libc::SYS_write, [1, 100, 25, 0, 0, 0], 10, 25),
            [(100, 10, 0), (110, 10, 0), (120, 5, 0)]
        );
        assert_eq!(pieces(libc::SYS_pwrite64, [1, 100, 15, 7, 0, 0], 10, 15), [(100, 10, 7), (110, 5, 17)]);
    }

    #[test]
    fn lists_are_walked_over_empty_elements_and_across_borders() {
        let list = [[0usize, 0], [1000, 3], [2000, 0], [3000, 12]];
        let at = list.as_ptr() as usize;
        assert_eq!(
            pieces(libc::SYS_pwritev, [1, at, 4, 50, 0, 0], 10, 15),
            [(1000, 3, 50), (3000, 10, 53), (3010, 2, 63)]
        );
        let here = [1, at, 4, usize::MAX, usize::MAX, 0];
        assert_eq!(pieces(libc::SYS_pwritev2, here, 100, 15), [(1000, 3, 0), (3000, 12, 0)]);
    }

    #[test]
    fn long_lists_are_read_once_and_what_cannot_be_read_is_an_error() {
        let list: Vec<[usize; 2]> = (0..1000).map(|i| [i << 20, i % 7]).collect();
        let at = list.as_ptr() as usize;
        let mut parts = Parts::of(libc::SYS_writev as usize, &[1, at, 1000, 0, 0, 0]);
        let (mut done, mut copied, mut seen) = (0, 0, Vec::new());
        let mut read = |from, out: &mut [u8]| {
            copied += out.len();
            read_own(from, out)
        };
        while let Some(mut p) = parts.next(done, 5, &mut read).unwrap() {
            p.cut(p.len.min(4));
            assert_eq!((p.args[1], p.args[2]), (p.addr, p.len));
            seen.push((p.addr >> 20, p.len));
            done += p.len;
        }
        let wanted = (0..1000usize).flat_map(|i| [(i, (i % 7).min(4)), (i, (i % 7).saturating_sub(4))]);
        assert_eq!(seen, wanted.filter(|(_, len)| *len > 0).collect::<Vec<_>>());
        assert_eq!(copied, 16_000);
        let mut parts = Parts::of(libc::SYS_writev as usize, &[1, 4096, 3, 0, 0, 0]);
        assert_eq!(parts.next(0, 5, &mut read_own).unwrap_err(), Errno::EFAULT);
    }

    #[test]
    fn what_is_not_a_transfer_has_no_pieces_and_readers_of_pipes_wait_for_one_only() {
        assert!(!Parts::of(libc::SYS_sendmsg as usize, &[0; 6]).known());
        let mut ends = [0; 2];
        // SAFETY: a live array.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let mut parts = Parts::of(libc::SYS_read as usize, &[ends[0] as usize, 100, 50, 0, 0, 0]);
        assert!(parts.next(0, 10, &mut read_own).unwrap().unwrap().last);
        ends.into_iter().for_each(crate::sys::close);
    }
}
