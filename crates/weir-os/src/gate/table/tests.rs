//! The table against the kernel's header; the decoder against a made-up program memory.

use super::*;
use crate::sys::Errno;
use std::collections::BTreeMap;

/// Memory at made-up addresses, and what was reported.
#[derive(Default)]
struct Fake {
    bytes: BTreeMap<usize, u8>,
    reports: Vec<(usize, usize)>,
    reads: usize,
    /// Unmapped memory reads as these bytes instead of failing.
    everywhere: Option<[u8; 8]>,
}

impl Fake {
    fn put(&mut self, addr: usize, bytes: &[u8]) {
        self.bytes.extend(bytes.iter().enumerate().map(|(at, &byte)| (addr + at, byte)));
    }

    /// 64-bit words one behind the other.
    fn words(&mut self, addr: usize, words: &[usize]) {
        for (at, word) in words.iter().enumerate() {
            self.put(addr + at * 8, &word.to_ne_bytes());
        }
    }

    /// The reports of a call that is known through and through, in order of address.
    fn of(&mut self, nr: i64, args: [usize; 6]) -> Vec<(usize, usize)> {
        assert_eq!(visit(nr as usize, &args, self), Ok(Known::Yes), "call {nr}");
        self.reports.sort_unstable();
        self.reports.dedup();
        std::mem::take(&mut self.reports)
    }
}

impl Caller for Fake {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        self.reads += 1;
        assert!(out.len() <= 256);
        for (at, byte) in out.iter_mut().enumerate() {
            let filler = self.everywhere.map(|word| word[at % 8]);
            *byte = self.bytes.get(&(addr + at)).copied().or(filler).ok_or(Errno::EFAULT)?;
        }
        Ok(())
    }

    fn buffer(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        assert!(addr != 0 && len != 0 && addr.checked_add(len).is_some(), "{addr:#x} {len:#x}");
        self.reports.push((addr, len));
        Ok(())
    }
}

#[test]
fn the_table_names_every_call_of_the_kernel_header() {
    let paths = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"];
    let header = paths.iter().find_map(|path| std::fs::read_to_string(path).ok());
    let header = header.expect("asm/unistd_64.h not found: install the package linux-libc-dev");
    let mut count = 0;
    for line in header.lines() {
        let Some((called, number)) = line.strip_prefix("#define __NR_").and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let number: usize = number.trim().parse().expect("a number");
        // Headers newer than the table may know more.
        if number <= 469 {
            assert_eq!(name(number), Some(called), "call {number}");
            count += 1;
        }
    }
    assert!(count > 300, "only {count} calls in the header");
}

#[test]
fn rows_are_found_by_number_and_length_arguments_exist() {
    for nr in 0..600 {
        let known = matches!(nr, 0..=336 | 424..=469);
        assert_eq!(name(nr).is_some(), known, "call {nr}");
        if !known {
            assert_eq!((pointer_args(nr), table_args(nr)), (0b11_1111, 0), "call {nr}");
        }
        assert_eq!(table_args(nr) & !pointer_args(nr), 0, "call {nr}");
    }
    assert_eq!(name(469), Some("file_setattr"));
    assert_eq!(name(usize::MAX), None);
    for row in &ROWS {
        let plain = row.kinds.iter().all(|kind| !matches!(kind, Kind::By | Kind::Deep));
        assert_eq!(plain, row.decoder == Decoder::Plain, "{}", row.name);
    }
}

#[test]
fn masks_tell_pointers_tables_and_ranges() {
    assert_eq!(pointer_args(libc::SYS_read as usize), 0b10);
    assert_eq!(pointer_args(libc::SYS_getpid as usize), 0);
    assert_eq!(pointer_args(libc::SYS_futex as usize), 0b1_1001);
    assert_eq!(table_args(libc::SYS_readv as usize), 0b10);
    assert_eq!(table_args(libc::SYS_process_vm_readv as usize), 0b10);
    assert!(is_memory_call(libc::SYS_munmap as usize) && is_memory_call(libc::SYS_process_madvise as usize));
    assert!(!is_memory_call(libc::SYS_read as usize) && !is_memory_call(9999));
    assert!(is_never_trapped(libc::SYS_rt_sigreturn as usize) && !is_never_trapped(9999));
    assert!(
        outlives_its_return(libc::SYS_io_submit as usize) && !outlives_its_return(libc::SYS_read as usize)
    );
}

#[test]
fn lengths_come_from_their_arguments() {
    let mut fake = Fake::default();
    assert_eq!(fake.of(libc::SYS_read, [3, 0x1000, 77, 0, 0, 0]), [(0x1000, 77)]);
    assert_eq!(fake.of(libc::SYS_fstat, [3, 0x1000, 0, 0, 0, 0]), [(0x1000, 144)]);
    assert_eq!(fake.of(libc::SYS_mincore, [0x2000, 4097, 0x9000, 0, 0, 0]), [(0x9000, 2)]);
    assert_eq!(fake.of(libc::SYS_epoll_wait, [3, 0x1000, 10, 0, 0, 0]), [(0x1000, 120)]);
    assert_eq!(
        fake.of(libc::SYS_select, [65, 0x1000, 0, 0x2000, 0x3000, 0]),
        [(0x1000, 16), (0x2000, 16), (0x3000, 16)]
    );
    assert_eq!(
        fake.of(libc::SYS_ppoll, [0x1000, 3, 0x2000, 0x3000, 8, 0]),
        [(0x1000, 24), (0x2000, 16), (0x3000, 8)]
    );
    // Garbage above an int's 32 bits, and a negative one.
    assert_eq!(fake.of(libc::SYS_getdents64, [3, 0x1000, 0xdead_0000_0040, 0, 0, 0]), [(0x1000, 64)]);
    assert_eq!(fake.of(libc::SYS_bind, [3, 0x1000, usize::MAX, 0, 0, 0]), []);
    assert_eq!(fake.of(libc::SYS_munmap, [0x1000, 0x1000, 0, 0, 0, 0]), []);
    assert_eq!(fake.of(libc::SYS_execve, [0x1000, 0x2000, 0x3000, 0, 0, 0]), []);
    assert_eq!(fake.reads, 0);
    assert_eq!(visit(9999, &[0x1000; 6], &mut fake), Ok(Known::Unknown));
}

#[test]
fn strings_end_at_their_nul_or_at_the_longest_path() {
    let mut fake = Fake::default();
    fake.put(0x1ffe, b"/etc/passwd\0");
    fake.put(0x2100, &[b'x'; 512]);
    // Memory ends with the string's own 256 bytes: nothing behind is read.
    fake.put(0x200a, &[b'y'; 0xf6]);
    assert_eq!(fake.of(libc::SYS_chdir, [0x1ffe, 0, 0, 0, 0, 0]), [(0x1ffe, 12)]);
    fake.everywhere = Some([b'z'; 8]);
    assert_eq!(fake.of(libc::SYS_chdir, [0x10_0001, 0, 0, 0, 0, 0]), [(0x10_0001, 4096)]);
    fake.everywhere = None;
    assert_eq!(visit(libc::SYS_chdir as usize, &[0x9000, 0, 0, 0, 0, 0], &mut fake), Err(Errno::EFAULT));
}

#[test]
fn vectors_are_reported_with_their_parts() {
    let mut fake = Fake::default();
    for at in 0..40 {
        fake.words(0x1000 + at * 16, &[0x10_0000 + at * 0x1000, at]);
    }
    let reports = fake.of(libc::SYS_readv, [3, 0x1000, 40, 0, 0, 0]);
    assert_eq!(reports[0], (0x1000, 640));
    assert_eq!(reports[1..], (1..40).map(|at| (0x10_0000 + at * 0x1000, at)).collect::<Vec<_>>());
    assert_eq!(fake.reads, 3);
    let both = fake.of(libc::SYS_process_vm_readv, [1, 0x1000, 2, 0x1020, 2, 0]);
    // Of what lies elsewhere the list alone.
    assert_eq!(both, [(0x1000, 32), (0x1020, 32), (0x10_1000, 1)]);
    assert_eq!(fake.of(libc::SYS_process_madvise, [1, 0x1000, 2, 0, 0, 0]), [(0x1000, 32)]);
}

#[test]
fn messages_bring_name_vector_and_control() {
    let mut fake = Fake::default();
    fake.words(0x5000, &[0x30_0000, 9]);
    fake.words(0x1000, &[0x20_0000, 16, 0x5000, 1, 0x40_0000, 24, 0]);
    let one = [(0x1000, 56), (0x5000, 16), (0x20_0000, 16), (0x30_0000, 9), (0x40_0000, 24)];
    assert_eq!(fake.of(libc::SYS_sendmsg, [3, 0x1000, 0, 0, 0, 0]), one);
    fake.words(0x1040, &[0x21_0000, 500, 0x5000, 1, 0, 24, 0]);
    let two = fake.of(libc::SYS_recvmmsg, [3, 0x1000, 2, 0, 0x7000, 0]);
    // The second address is cut to a struct sockaddr_storage.
    let expected = [
        (0x1000, 56),
        (0x1000, 128),
        (0x1040, 56),
        (0x5000, 16),
        (0x7000, 16),
        (0x20_0000, 16),
        (0x21_0000, 128),
        (0x30_0000, 9),
        (0x40_0000, 24),
    ];
    assert_eq!(two, expected);
}

#[test]
fn value_results_and_structures_tell_their_own_size() {
    let mut fake = Fake::default();
    fake.put(0x1000, &20u32.to_ne_bytes());
    assert_eq!(fake.of(libc::SYS_getsockopt, [3, 1, 2, 0x2000, 0x1000, 0]), [(0x1000, 4), (0x2000, 20)]);
    // SO_GET_FILTER counts instructions of 8 bytes.
    assert_eq!(fake.of(libc::SYS_getsockopt, [3, 1, 26, 0x2000, 0x1000, 0]), [(0x1000, 4), (0x2000, 160)]);
    assert_eq!(fake.of(libc::SYS_accept, [3, 0x2000, 0x1000, 0, 0, 0]), [(0x1000, 4), (0x2000, 20)]);
    assert_eq!(fake.of(libc::SYS_accept, [3, 0, 0, 0, 0, 0]), []);
    assert_eq!(
        fake.of(libc::SYS_recvfrom, [3, 0x3000, 5, 0, 0x2000, 0x1000]),
        [(0x1000, 4), (0x2000, 20), (0x3000, 5)]
    );
    fake.put(0x4000, &[0; 256]);
    fake.put(0x4000, b".");
    assert_eq!(
        fake.of(libc::SYS_name_to_handle_at, [3, 0x4000, 0x1000, 0x5000, 0, 0]),
        [(0x1000, 28), (0x4000, 2), (0x5000, 8)]
    );
    fake.put(0x6000, &120u32.to_ne_bytes());
    assert_eq!(fake.of(libc::SYS_sched_setattr, [0, 0x6000, 0, 0, 0, 0]), [(0x6000, 120)]);
    fake.words(0x7000, &[0x8000, 8]);
    assert_eq!(
        fake.of(libc::SYS_pselect6, [1, 0x9000, 0, 0, 0, 0x7000]),
        [(0x7000, 16), (0x8000, 8), (0x9000, 8)]
    );
}

#[test]
fn futex_operations_take_what_they_use() {
    let mut fake = Fake::default();
    let mut of = |op| fake.of(libc::SYS_futex, [0x1000, op, 1, 0x2000, 0x3000, 0]);
    assert_eq!(of(0), [(0x1000, 4), (0x2000, 16)]);
    assert_eq!(of(128), [(0x1000, 4), (0x2000, 16)]);
    assert_eq!(of(9 | 128 | 256), [(0x1000, 4), (0x2000, 16)]);
    assert_eq!(of(129), []);
    assert_eq!(of(1), [(0x1000, 4)]);
    assert_eq!(of(4 | 128), [(0x1000, 4), (0x3000, 4)]);
    assert_eq!(of(11), [(0x1000, 4), (0x2000, 16), (0x3000, 4)]);
    let mut fake = Fake::default();
    fake.words(0x1000, &[1, 0x5000, 2, 1, 0x6000, 2]);
    let waitv = fake.of(449, [0x1000, 2, 0, 0x2000, 1, 0]);
    assert_eq!(waitv, [(0x1000, 48), (0x2000, 16), (0x5000, 8), (0x6000, 8)]);
}

#[test]
fn asynchronous_requests_are_followed() {
    let mut fake = Fake::default();
    fake.words(0x1000, &[0x2000, 0x3000, 0x4000]);
    fake.words(0x2000, &[0, 0, 3 << 32, 0x10_0000, 4096, 0, 0, 0]);
    fake.words(0x3000, &[0, 0, 3 << 32 | 8, 0x5000, 1, 0, 0, 0]);
    fake.words(0x4000, &[0, 0, 3 << 32 | 2, 0x77_0000, 1, 0, 0, 0]);
    fake.words(0x5000, &[0x20_0000, 512]);
    let reports = fake.of(libc::SYS_io_submit, [7, 3, 0x1000, 0, 0, 0]);
    let expected = [
        (0x1000, 24),
        (0x2000, 64),
        (0x3000, 64),
        (0x4000, 64),
        (0x5000, 16),
        (0x10_0000, 4096),
        (0x20_0000, 512),
    ];
    assert_eq!(reports, expected);
}

#[test]
fn ioctls_are_sized_by_their_request() {
    let mut fake = Fake::default();
    let ioctl = libc::SYS_ioctl;
    assert_eq!(fake.of(ioctl, [0, 0x5401, 0x1000, 0, 0, 0]), [(0x1000, 44)]);
    assert_eq!(fake.of(ioctl, [0, 0x541b, 0x1000, 0, 0, 0]), [(0x1000, 4)]);
    assert_eq!(fake.of(ioctl, [0, 0x5451, 0x1000, 0, 0, 0]), []);
    // TCGETS2 encodes its 44 bytes, TUNSETIFF lies.
    assert_eq!(fake.of(ioctl, [0, 0x802c_542a, 0x1000, 0, 0, 0]), [(0x1000, 44)]);
    assert_eq!(fake.of(ioctl, [0, 0x4004_54ca, 0x1000, 0, 0, 0]), [(0x1000, 40)]);
    fake.words(0x2000, &[400, 0x3000]);
    assert_eq!(fake.of(ioctl, [0, 0x8912, 0x2000, 0, 0, 0]), [(0x2000, 16), (0x3000, 400)]);
    fake.words(0x4000, &[0, 0, 0, 3, 0]);
    let fiemap = fake.of(ioctl, [0, 0xc020_660b, 0x4000, 0, 0, 0]);
    assert_eq!(fiemap, [(0x4000, 32), (0x4000, 32 + 3 * 56)]);
    assert_eq!(visit(ioctl as usize, &[0, 0x4b01, 0x1000, 0, 0, 0], &mut fake), Ok(Known::Partly));
    assert_eq!(fake.reports, [(0x1000, 256)]);
}

#[test]
fn operation_codes_choose_between_number_and_pointer() {
    let mut fake = Fake::default();
    assert_eq!(fake.of(libc::SYS_fcntl, [3, 6, 0x1000, 0, 0, 0]), [(0x1000, 32)]);
    assert_eq!(fake.of(libc::SYS_fcntl, [3, 16, 0x1000, 0, 0, 0]), [(0x1000, 8)]);
    assert_eq!(fake.of(libc::SYS_fcntl, [3, 4, 0x1000, 0, 0, 0]), []);
    assert_eq!(fake.of(libc::SYS_prctl, [15, 0x1000, 0, 0, 0, 0]), [(0x1000, 16)]);
    assert_eq!(fake.of(libc::SYS_prctl, [4, 0x1000, 0, 0, 0, 0]), []);
    assert_eq!(fake.of(libc::SYS_semctl, [1, 0, 16, 0x1000, 0, 0]), []);
    assert_eq!(fake.of(libc::SYS_semctl, [1, 0, 2, 0x1000, 0, 0]), [(0x1000, 104)]);
    fake.words(0x1000, &[5, 0x2000]);
    assert_eq!(fake.of(libc::SYS_seccomp, [1, 0, 0x1000, 0, 0, 0]), [(0x1000, 16), (0x2000, 40)]);
    let attached = fake.of(libc::SYS_setsockopt, [3, 1, 26, 0x1000, 16, 0]);
    assert_eq!(attached, [(0x1000, 16), (0x2000, 40)]);
    assert_eq!(fake.of(libc::SYS_msgsnd, [1, 0x1000, 10, 0, 0, 0]), [(0x1000, 18)]);
    assert_eq!(visit(libc::SYS_bpf as usize, &[0, 0x1000, 48, 0, 0, 0], &mut fake), Ok(Known::Partly));
}

#[test]
fn programs_to_start_are_read_through_their_arrays() {
    let mut fake = Fake::default();
    fake.put(0x1000, b"/bin/true\0");
    fake.put(0x1100, &[0; 256]);
    fake.put(0x100a, &[0; 246]);
    fake.words(0x2000, &[0x1000, 0x1100, 0]);
    assert_eq!(visit_exec(0x1000, 0x2000, 0, &mut fake), Ok(Known::Yes));
    let expected = [(0x1000, 10), (0x2000, 8), (0x1000, 10), (0x2008, 8), (0x1100, 1), (0x2010, 8)];
    assert_eq!(fake.reports, expected);
}

#[test]
fn wild_pointers_pass_their_error_on() {
    for (nr, args) in [
        (libc::SYS_readv, [3, 0xdead_0000, 2, 0, 0, 0]),
        (libc::SYS_sendmsg, [3, usize::MAX - 20, 0, 0, 0, 0]),
        (libc::SYS_getsockopt, [3, 1, 1, 0x1000, 0xdead_0000, 0]),
        (libc::SYS_accept, [3, 0x1000, 0, 0, 0, 0]),
        (libc::SYS_open, [usize::MAX, 0, 0, 0, 0, 0]),
        (libc::SYS_io_submit, [3, 1, 0xdead_0000, 0, 0, 0]),
    ] {
        assert_eq!(visit(nr as usize, &args, &mut Fake::default()), Err(Errno::EFAULT), "call {nr}");
    }
    struct Full;
    impl Caller for Full {
        fn read(&mut self, _: usize, out: &mut [u8]) -> Result<(), Errno> {
            out.fill(0);
            Ok(())
        }
        fn buffer(&mut self, _: usize, _: usize) -> Result<(), Errno> {
            Err(Errno::ENOMEM)
        }
    }
    assert_eq!(visit(0, &[0, 0x1000, 1, 0, 0, 0], &mut Full), Err(Errno::ENOMEM));
}

/// No argument, however wild, overflows (the fake checks), panics or runs on.
#[test]
fn absurd_arguments_stay_bounded() {
    let numbers = [
        0,
        1,
        15,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 47,
        usize::MAX / 2,
        usize::MAX - 8,
        usize::MAX,
    ];
    let memories = [Some([0xff; 8]), Some([0x10; 8]), Some(0x2000_0000_1000u64.to_ne_bytes()), None];
    let (mut seed, mut most) = (0x9e37_79b9_7f4a_7c15u64, 0);
    for nr in 0..600 {
        for memory in memories {
            for _ in 0..12 {
                let args = [0; 6].map(|_: usize| {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    numbers[(seed >> 33) as usize % numbers.len()]
                });
                let mut fake = Bounded { memory, reads: 0, reports: 0 };
                let _ = visit(nr, &args, &mut fake);
                most = most.max(fake.reads.max(fake.reports));
            }
        }
    }
    assert!((1000..3_000_000).contains(&most), "{most} steps");
}

struct Bounded {
    memory: Option<[u8; 8]>,
    reads: usize,
    reports: usize,
}

impl Caller for Bounded {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        assert!(addr.checked_add(out.len()).is_some() && out.len() <= 256);
        self.reads += 1;
        let word = self.memory.ok_or(Errno::EFAULT)?;
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = word[at % 8];
        }
        Ok(())
    }

    fn buffer(&mut self, addr: usize, len: usize) -> Result<(), Errno> {
        assert!(addr != 0 && len != 0 && addr.checked_add(len).is_some(), "{addr:#x} {len:#x}");
        self.reports += 1;
        Ok(())
    }
}

#[test]
fn the_longest_message_list_is_read_to_its_end() {
    // Every vector of every message is the same one: 1024 messages of 1024 parts.
    let mut words = [0u8; 8];
    words.copy_from_slice(&0x400usize.to_ne_bytes());
    let mut fake = Bounded { memory: Some(words), reads: 0, reports: 0 };
    let known = visit(libc::SYS_sendmmsg as usize, &[3, 0x1000, 1024, 0, 0, 0], &mut fake);
    assert_eq!(known, Ok(Known::Yes));
    assert!(fake.reports > 1 << 20, "{} reports", fake.reports);
}
