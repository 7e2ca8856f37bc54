//! What the decoder says against what the processor does: instructions are made by chance, run, and done by
//! [`Load::finish`].

use super::*;
use crate::random::Random;
use core::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
/// Where in the mapping: code; what the code keeps; the memory that is read.
const KEPT: usize = PAGE;
const DATA: usize = 2 * PAGE;
const DATA_BYTES: usize = PAGE;

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Memory in the lowest 2 GiB, so that addresses without a register reach it too.
struct Bench {
    base: usize,
}

impl Bench {
    fn new(random: &mut Random) -> Bench {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: new memory.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), 3 * PAGE, protection, flags, -1, 0) } as usize;
        assert!(base < 1 << 31, "{base:#x}");
        let bench = Bench { base };
        (0..DATA_BYTES / 8).for_each(|i| bench.word(DATA + 8 * i).store(random.next(), Ordering::Relaxed));
        bench
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: in the mapping, aligned, shared as atomics only.
        unsafe { &*((self.base + at) as *const AtomicU64) }
    }

    fn read(&self, address: usize, bytes: u8) -> u64 {
        assert!(address >= self.base + DATA && address + usize::from(bytes) <= self.base + DATA + DATA_BYTES);
        // SAFETY: in the mapping.
        (0..usize::from(bytes))
            .fold(0, |v, i| v | u64::from(unsafe { *((address + i) as *const u8) }) << (8 * i))
    }

    /// Has the processor run one instruction with these registers. `place` makes it for the address where it
    /// will be.
    fn run(&self, registers: &mut Registers, place: impl Fn(usize) -> Vec<u8>) {
        const STACK: usize = KEPT;
        const TABLE: usize = KEPT + 8;
        const RDI: usize = KEPT + 16;
        const RDI_NUMBER: u8 = 7;
        const FLAGS: u8 = 16;
        // push rbx, rbp, r12, r13, r14, r15
        let mut code: Vec<u8> = vec![0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57];
        // `mov` of 64 bits between a register and what is kept, or the table that rdi points into the middle
        // of.
        let kept = |code: &mut Vec<u8>, opcode: u8, register: u8, at: usize| {
            code.extend([0x48, opcode, (register & 7) << 3 | 5]);
            let offset = at as i32 - (code.len() as i32 + 4);
            code.extend(offset.to_le_bytes());
        };
        let place_of = |slot: u8| (slot * 8).wrapping_sub(64);
        let slot = |code: &mut Vec<u8>, opcode: u8, register: u8| {
            let rex = 0x48 | (register >> 3) << 2;
            code.extend([rex, opcode, 0x40 | (register & 7) << 3 | 7, place_of(register)]);
        };
        const STORE: u8 = 0x89;
        const LOAD: u8 = 0x8b;
        const RSP_NUMBER: u8 = 4;
        let others = || (0..16).filter(|r| *r != RDI_NUMBER);
        kept(&mut code, STORE, RSP_NUMBER, STACK);
        kept(&mut code, STORE, RDI_NUMBER, TABLE);
        code.extend([0xff, 0x77, place_of(FLAGS), 0x9d]); // push; popf
        others().for_each(|r| slot(&mut code, LOAD, r));
        slot(&mut code, LOAD, RDI_NUMBER);
        code.extend(place(self.base + code.len()));
        kept(&mut code, STORE, RDI_NUMBER, RDI);
        kept(&mut code, LOAD, RDI_NUMBER, TABLE);
        others().for_each(|r| slot(&mut code, STORE, r));
        kept(&mut code, LOAD, 0, RDI);
        code.extend([0x48, STORE, 0x47, place_of(RDI_NUMBER)]);
        kept(&mut code, LOAD, RSP_NUMBER, STACK);
        code.extend([0x9c, 0x8f, 0x47, place_of(FLAGS)]); // pushf; pop
        code.extend([0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
        assert!(code.len() < PAGE);
        let mut table = [0; 17];
        table[..16].copy_from_slice(&registers.general);
        table[16] = registers.flags;
        // SAFETY: room for the code in the mapping, which may be written and run; the code changes the table
        // alone, and keeps what the calling convention has it keep.
        unsafe {
            core::ptr::copy_nonoverlapping(code.as_ptr(), self.base as *mut u8, code.len());
            let run: extern "C" fn(*mut u64) = core::mem::transmute(self.base);
            run(table.as_mut_ptr().add(8));
        }
        registers.general.copy_from_slice(&table[..16]);
        registers.flags = table[16];
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses it any more.
        unsafe { libc::munmap(self.base as *mut libc::c_void, 3 * PAGE) };
    }
}

/// Opcodes that are loads in some form.
const OPCODES: &[&[u8]] = &[
    &[0x8a],
    &[0x8b],
    &[0x63],
    &[0x0f, 0xb6],
    &[0x0f, 0xb7],
    &[0x0f, 0xbe],
    &[0x0f, 0xbf],
    &[0x02],
    &[0x03],
    &[0x0a],
    &[0x0b],
    &[0x22],
    &[0x23],
    &[0x2a],
    &[0x2b],
    &[0x32],
    &[0x33],
    &[0x3a],
    &[0x3b],
    &[0x38],
    &[0x39],
    &[0x80],
    &[0x81],
    &[0x83],
    &[0x84],
    &[0x85],
    &[0xf6],
    &[0xf7],
];
/// Flags that instructions are given by chance: none that changes how the processor goes on.
const USUAL_FLAGS: u64 = 0x202;

/// An instruction: prefixes and opcode, then addressing with as many bytes as it needs, then more than any
/// operand needs.
struct Made {
    head: Vec<u8>,
    mod_rm: u8,
    sib: u8,
    tail: [u8; 8],
}

impl Made {
    fn new(random: &mut Random) -> Made {
        let mut head = Vec::new();
        if random.below(3) == 0 {
            head.push(OPERAND_SIZE);
        }
        if random.below(3) > 0 {
            head.push(REX | random.below(16) as u8);
        }
        head.extend(random.one_of(OPCODES));
        let mut mod_rm = random.next() as u8;
        if matches!(head.last(), Some(0x80..=0x83)) && random.below(8) > 0 {
            mod_rm |= 7 << 3;
        }
        if matches!(head.last(), Some(0xf6 | 0xf7)) && random.below(8) > 0 {
            mod_rm &= !(7 << 3);
        }
        Made { head, mod_rm, sib: random.next() as u8, tail: random.next().to_le_bytes() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        bytes.push(self.mod_rm);
        if self.mod_rm >> 6 != 3 && self.mod_rm & 7 == 4 {
            bytes.push(self.sib);
        }
        bytes.extend(self.tail);
        bytes
    }

    fn decode(&self, ip: usize, registers: &Registers) -> Option<Load> {
        let bytes = self.bytes();
        Load::decode(|i| bytes[i], ip, registers)
    }

    /// Changes displacement, or else a register, so that the operand lies in the memory that is read.
    fn aim(&mut self, bench: &Bench, ip: usize, registers: &mut Registers, random: &mut Random) -> bool {
        let at = DATA as u64 + random.below(DATA_BYTES as u64 - 8);
        let target = bench.base as u64 + at;
        let Some(now) = self.decode(ip, registers) else { return false };
        let off = target.wrapping_sub(now.address as u64);
        let (mode, low) = (self.mod_rm >> 6, self.mod_rm & 7);
        let no_base = low == 4 && self.sib & 7 == 5;
        if mode == 0 && (low == 5 || no_base) {
            let before =
                i64::from(i32::from_le_bytes([self.tail[0], self.tail[1], self.tail[2], self.tail[3]]));
            let wanted = before.wrapping_add(off as i64);
            let Ok(wanted) = i32::try_from(wanted) else { return false };
            self.tail[..4].copy_from_slice(&wanted.to_le_bytes());
        } else {
            let rex = self.head.iter().find(|b| *b & 0xf0 == REX).copied().unwrap_or(0);
            let base = if low == 4 { self.sib & 7 } else { low };
            let number = usize::from(base | (rex & BASE) << 3);
            registers.general[number] = registers.general[number].wrapping_add(off);
        }
        self.decode(ip, registers).is_some_and(|load| load.address as u64 == target)
    }
}

#[test]
fn what_is_decoded_does_what_the_processor_does() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let bench = Bench::new(&mut random);
    let (mut done, mut forms) = (0, std::collections::BTreeSet::new());
    for _ in 0..400_000 {
        let mut made = Made::new(&mut random);
        let mut registers =
            Registers { general: [0; 16], flags: USUAL_FLAGS | random.next() & ARITHMETIC_FLAGS };
        registers.general.iter_mut().for_each(|r| {
            *r = match random.below(3) {
                0 => random.next(),
                1 => random.below(0x200),
                _ => random.one_of(&[0, 1, 0x7f, 0x80, 0xffff, 0x7fff_ffff, 0x8000_0000, u64::MAX, 1 << 63]),
            }
        });
        if random.below(4) == 0 {
            made.tail[4..].fill(random.one_of(&[0, 0xff, 0x7f, 0x80]));
        }
        // The place of the instruction does not depend on the instruction.
        let ip = core::cell::Cell::new(0);
        let mut idle = Registers { general: [0; 16], flags: USUAL_FLAGS };
        bench.run(&mut idle, |at| {
            ip.set(at);
            vec![0x90]
        });
        if !made.aim(&bench, ip.get(), &mut registers, &mut random) {
            continue;
        }
        let load = made.decode(ip.get(), &registers).expect("it was decoded before");
        let value = bench.read(load.address, load.bytes);
        let (mut ours, mut theirs) = (registers, registers);
        load.finish(value, &mut ours);
        bench.run(&mut theirs, |_| made.bytes()[..usize::from(load.length)].to_vec());
        assert_eq!(
            ours,
            theirs,
            "{:x?} {load:x?} from {registers:x?}",
            &made.bytes()[..usize::from(load.length)]
        );
        done += 1;
        let prefixes = made.head.iter().filter(|b| **b == OPERAND_SIZE || **b & 0xf8 == REX | WIDE).count();
        forms.insert((made.head[made.head.len() - 1], made.mod_rm >> 6, made.mod_rm & 7, prefixes));
    }
    assert!(done > 100_000, "{done}");
    // Each opcode in each addressing mode, with no prefix that matters and with one.
    assert!(forms.len() > OPCODES.len() * 3 * 8 * 2, "{}", forms.len());
}

#[test]
fn what_is_no_load_is_not_decoded() {
    let registers = Registers { general: [0x1000; 16], flags: USUAL_FLAGS };
    for (what, bytes) in [
        ("a register is no memory", &[0x48, 0x8b, 0xc1][..]),
        ("a store", &[0x48, 0x89, 0x01]),
        ("add to memory", &[0x48, 0x01, 0x01]),
        ("add of a number to memory", &[0x48, 0x83, 0x01, 0x05]),
        ("not", &[0x48, 0xf7, 0x11]),
        ("lock cmpxchg", &[0xf0, 0x48, 0x0f, 0xb1, 0x01]),
        ("fs:", &[0x64, 0x48, 0x8b, 0x01]),
        ("gs:", &[0x65, 0x48, 0x8b, 0x01]),
        ("addresses of 32 bits", &[0x67, 0x8b, 0x01]),
        ("a REX prefix that another prefix follows", &[0x48, 0x66, 0x8b, 0x01]),
        ("rep", &[0xf3, 0x48, 0x8b, 0x01]),
        ("popcnt", &[0xf3, 0x48, 0x0f, 0xb8, 0x01]),
        ("movsd to a vector", &[0xf2, 0x0f, 0x10, 0x01]),
        ("adc", &[0x48, 0x13, 0x01]),
        ("sbb", &[0x48, 0x1b, 0x01]),
        ("xchg", &[0x48, 0x87, 0x01]),
        ("push", &[0xff, 0x31]),
        ("movsxd without sign", &[0x63, 0x01]),
        ("a VEX prefix", &[0xc5, 0xf9, 0x6f, 0x01]),
        ("imul", &[0x48, 0x0f, 0xaf, 0x01]),
    ] {
        let more = |i: usize| bytes.get(i).copied().unwrap_or(0x90);
        assert_eq!(Load::decode(more, 0x4000, &registers), None, "{what}");
    }
}

#[test]
fn no_byte_behind_the_instruction_is_read() {
    let registers = Registers { general: [0x1000; 16], flags: USUAL_FLAGS };
    for (bytes, address) in [
        (&[0x8b, 0x01][..], 0x1000),
        (&[0x48, 0x8b, 0x41, 0xf8], 0xff8),
        (&[0x48, 0x8b, 0x05, 1, 0, 0, 0], 0x4008),
        (&[0x66, 0x81, 0x3d, 0, 1, 0, 0, 0x34, 0x12], 0x4109),
        (&[0x0f, 0xb6, 0x44, 0x88, 0x10], 0x5010),
    ] {
        let read = |i: usize| *bytes.get(i).expect("a byte behind the instruction");
        let load = Load::decode(read, 0x4000, &registers).unwrap();
        assert_eq!((usize::from(load.length), load.address), (bytes.len(), address), "{bytes:x?}");
    }
}
