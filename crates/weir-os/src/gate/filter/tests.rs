//! An interpreter for classic BPF, and the filter under it and under the kernel.

use super::*;
use crate::random::Random;

const RANGE: (u32, u32) = (0x2000, 0x100);
const ALLOWED: (u64, u64) = (0x7f12_3456_7000, 0x7f12_3456_7040);
const ELSEWHERE: u64 = 0x5555_5555_1234;
const MANAGED: u64 = 0x2000_0000_0000;

/// The kernel's `struct seccomp_data`.
#[derive(Clone, Copy)]
struct Data {
    nr: u32,
    arch: u32,
    pointer: u64,
    args: [u64; 6],
}

impl Data {
    fn new(nr: u32, args: [u64; 6]) -> Data {
        Data { nr, arch: AUDIT_ARCH_X86_64, pointer: ELSEWHERE, args }
    }

    fn word(&self, offset: u32) -> u32 {
        let long = |value: u64| if offset.is_multiple_of(8) { value as u32 } else { (value >> 32) as u32 };
        match offset {
            0 => self.nr,
            4 => self.arch,
            8 | 12 => long(self.pointer),
            _ => long(self.args[(offset as usize - 16) / 8]),
        }
    }
}

/// The verdict and the number of instructions passed.
fn run(program: &[sock_filter], data: &Data) -> (u32, usize) {
    let (mut a, mut at) = (0u32, 0);
    for passed in 1.. {
        let one = program[at];
        let branch = |yes| usize::from(if yes { one.jt } else { one.jf });
        at += 1;
        match one.code {
            LOAD => a = data.word(one.k),
            SUB => a = a.wrapping_sub(one.k),
            JUMP => at += one.k as usize,
            EQUAL => at += branch(a == one.k),
            AT_LEAST => at += branch(a >= one.k),
            ANY_BIT => at += branch(a & one.k != 0),
            RETURN => return (one.k, passed),
            other => panic!("code {other:#x} at {}", at - 1),
        }
    }
    unreachable!()
}

fn filter() -> Program {
    build(RANGE.0, RANGE.1, ALLOWED)
}

fn verdict(data: &Data) -> bool {
    match run(&filter(), data).0 {
        RET_ALLOW => false,
        value if value == RET_TRAP | u32::from(TRAP_MARK) => true,
        other => panic!("verdict {other:#x}"),
    }
}

impl Random {
    /// A managed address, one just outside, a small number, null, or anything.
    fn argument(&mut self) -> u64 {
        let any = self.next();
        match any % 11 {
            0 => MANAGED + (any >> 24),
            1 => MANAGED - 1,
            2 => MANAGED,
            3 => MANAGED + (1 << 40) - 1,
            4 => MANAGED + (1 << 40),
            5 | 6 => 0,
            7 => any >> 32,
            8 => 0x7fff_0000_0000 | (any >> 40),
            9 => (any >> 8) << 32,
            _ => any,
        }
    }
}

#[test]
fn verdicts_equal_the_rule_in_plain_words() {
    let (filter, mut random) = (filter(), Random(0x1234_5678_9abc_def1));
    let odd = [0x3fff_ffff, 0x4000_0000, 0x4000_0001, u32::MAX, 1 << 20, 0x8000_0000];
    let (mut trapped, mut passed) = (0, 0);
    for nr in (0..600).chain(odd) {
        for _ in 0..300 {
            let mut args = [0; 6].map(|_: u64| random.argument());
            match random.next() % 8 {
                0 => args[1] = u64::from(PRIVATE_WAKE),
                1 => (args[0], args[2]) = (libc::SIG_SETMASK as u64, 0),
                _ => {}
            }
            let expected = traps(nr, &args, RANGE);
            let mark = RET_TRAP | u32::from(TRAP_MARK);
            let data = Data::new(nr, args);
            if i64::from(nr) == libc::SYS_io_uring_setup {
                assert_eq!(
                    run(&filter, &data).0,
                    RET_ERRNO | libc::ENOSYS as u32,
                    "refused whatever it carries"
                );
                continue;
            }
            assert_eq!(run(&filter, &data).0, if expected { mark } else { RET_ALLOW }, "call {nr} {args:x?}");
            let inside = Data { pointer: ALLOWED.0 + random.next() % 0x40, ..data };
            assert_eq!(run(&filter, &inside).0, RET_ALLOW, "call {nr} from the allowed code");
            let foreign = Data { arch: 0x4000_0003, ..data };
            assert_eq!(run(&filter, &foreign).0, RET_ALLOW, "call {nr} of another architecture");
            *(if expected { &mut trapped } else { &mut passed }) += 1;
        }
    }
    assert!(trapped > 30_000 && passed > 30_000, "{trapped} trapped, {passed} passed");
}

#[test]
fn the_allowed_code_ends_where_it_says() {
    let data = Data::new(0, [0, MANAGED, 1, 0, 0, 0]);
    let at = |pointer| verdict(&Data { pointer, ..data });
    assert!(at(ALLOWED.0 - 1) && at(ALLOWED.1) && at(ELSEWHERE) && at(ALLOWED.0 ^ 1 << 40));
    assert!(!at(ALLOWED.0) && !at(ALLOWED.1 - 1));
}

#[test]
fn tables_outside_the_managed_range_pass_and_inside_it_are_trapped() {
    let stack = 0x7ffc_0000_1000;
    for nr in [libc::SYS_readv, libc::SYS_sendmsg] {
        assert!(!verdict(&Data::new(nr as u32, [3, stack, 2, 0, 0, 0])), "call {nr}");
        assert!(verdict(&Data::new(nr as u32, [3, MANAGED, 2, 0, 0, 0])), "call {nr}");
    }
}

#[test]
fn a_mask_is_trapped_unless_it_is_set_and_nothing_asked_back() {
    let mask = |how: i32, old| verdict(&Data::new(14, [how as u64, MANAGED, old, 8, 0, 0]));
    assert!(!mask(libc::SIG_SETMASK, 0));
    assert!(mask(libc::SIG_SETMASK, 0x7ffc_0000_1000) && mask(libc::SIG_SETMASK, 1 << 40));
    assert!(mask(libc::SIG_BLOCK, 0) && mask(libc::SIG_UNBLOCK, MANAGED));
}

#[test]
fn calls_that_must_pass_pass_with_managed_leftovers_in_all_registers() {
    for nr in [15, 56, 57, 58, 59, 60, 218, 231, 273, 322, 334, 335, 336, 435] {
        assert!(!verdict(&Data::new(nr, [MANAGED; 6])), "call {nr}");
    }
    let futex = |op| Data::new(202, [MANAGED, op, 1, 0, 0, 0]);
    assert!(!verdict(&futex(129)) && verdict(&futex(128)) && verdict(&futex(1)));
    assert!(verdict(&Data::new(500, [0, 0, 0, 0, 0, MANAGED])), "an unknown number");
}

#[test]
fn paths_are_as_short_as_the_documentation_says() {
    let filter = filter();
    let stack = 0x7ffc_0000_1000;
    let cost = |nr, args| run(&filter, &Data::new(nr, args)).1;
    let costs = [
        ("whole", filter.len()),
        ("read", cost(0, [3, stack, 10, 0, 0, 0])),
        ("write", cost(1, [3, stack, 10, 0, 0, 0])),
        ("close", cost(3, [3, 0, 0, 0, 0, 0])),
        ("getpid", cost(39, [0; 6])),
        ("futex wait", cost(202, [stack, 128, 0, 0, 0, 0])),
        ("private futex wake", cost(202, [stack, 129, 0, 0, 0, 0])),
        ("read trapped", cost(0, [3, MANAGED, 10, 0, 0, 0])),
    ];
    let documented = [847, 17, 17, 13, 13, 26, 17, 20];
    assert_eq!(costs.map(|(_, count)| count), documented, "{costs:?}");
}

#[test]
fn jumps_stay_inside_and_every_path_returns() {
    let filter = filter();
    assert!(filter.len() < 4096);
    for (at, one) in filter.iter().enumerate() {
        let targets = match one.code {
            JUMP => [at + 1 + one.k as usize; 2],
            EQUAL | AT_LEAST | ANY_BIT => [at + 1 + usize::from(one.jt), at + 1 + usize::from(one.jf)],
            RETURN => continue,
            _ => [at + 1; 2],
        };
        assert!(targets.iter().all(|&target| target < filter.len()), "instruction {at}");
    }
}

/// Calls that need no memory load nothing but the number and the architecture: the kernel can tell
/// beforehand.
#[test]
fn calls_without_pointers_are_allowed_by_their_number_alone() {
    let filter = filter();
    for nr in (0..470).filter(|&nr| table::pointer_args(nr) == 0) {
        let mut at = 0;
        let mut a = 0;
        loop {
            let one = filter[at];
            at += 1;
            match one.code {
                LOAD => {
                    assert!(one.k == NR || one.k == ARCH, "call {nr} loads offset {}", one.k);
                    a = if one.k == NR { nr as u32 } else { AUDIT_ARCH_X86_64 };
                }
                JUMP => at += one.k as usize,
                EQUAL => at += usize::from(if a == one.k { one.jt } else { one.jf }),
                AT_LEAST => at += usize::from(if a >= one.k { one.jt } else { one.jf }),
                ANY_BIT => at += usize::from(if a & one.k != 0 { one.jt } else { one.jf }),
                RETURN => break assert_eq!(one.k, RET_ALLOW, "call {nr}"),
                other => panic!("call {nr} meets code {other:#x}"),
            }
        }
    }
}

#[test]
#[should_panic(expected = "border of 4 GiB")]
fn allowed_code_across_a_border_is_refused() {
    build(RANGE.0, RANGE.1, (0xffff_f000, 0x1_0000_1000));
}

/// Runs `body` in a child process that makes system calls only; returns its wait status.
fn in_a_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `body`, which neither allocates nor locks, and leaves by exit_group.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        crate::sys::exit_group(body());
    }
    let mut status = 0;
    // SAFETY: the status is written to a live variable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn the_kernel_takes_the_filter_and_traps_what_it_should() {
    let filter = filter();
    let read = |addr: u64| {
        // SAFETY: from no descriptor: nothing is read.
        unsafe { syscall(libc::SYS_read, [usize::MAX, addr as usize, 1, 0, 0, 0]) }
    };
    let status = in_a_child(|| match install(&filter, FLAGS) {
        Ok(()) if read(0x7ffc_0000_1000) == Err(Errno::EBADF) => 7,
        Ok(()) => 1,
        Err(error) => error.0,
    });
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "wait status {status:#x}");
    let status = in_a_child(|| {
        let _ = install(&filter, FLAGS);
        let _ = read(MANAGED + 5);
        1
    });
    assert!(
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS,
        "a call with a managed pointer was not trapped: wait status {status:#x}"
    );
}

#[test]
fn calls_from_the_allowed_code_reach_the_kernel() {
    // The one call site of this closure is inlined nowhere else; its own address is not known, so all of this
    // program's upper half is: enough to show that the kernel hands the pointer over as the filter reads it.
    let here = calls_from_the_allowed_code_reach_the_kernel as *const () as u64;
    let base = here >> 32 << 32;
    let filter = build(RANGE.0, RANGE.1, (base, base | 0xffff_ffff));
    let status = in_a_child(|| {
        if install(&filter, FLAGS).is_err() {
            return 1;
        }
        // SAFETY: from no descriptor: nothing is read.
        let read = unsafe { syscall(libc::SYS_read, [usize::MAX, MANAGED as usize, 1, 0, 0, 0]) };
        if read == Err(Errno::EBADF) { 7 } else { 2 }
    });
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "wait status {status:#x}");
}

#[test]
fn a_broken_program_is_refused() {
    let nothing: [sock_filter; 0] = [];
    assert_eq!(
        in_a_child(|| install(&nothing, FLAGS).map_or_else(|error| error.0, |()| 0)) >> 8,
        Errno::EINVAL.0
    );
}
