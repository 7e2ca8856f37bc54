//! Numbers by rule, for data that can be checked and for accesses by chance.

/// A good mix of a number's bits (the finaliser of SplitMix64, Steele, Lea and Flood 2014).
pub fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}

/// A stream of mixed numbers.
pub struct Random(u64);

impl Random {
    /// A stream that depends on the seed only.
    pub fn new(seed: u64) -> Random {
        Random(mix(seed))
    }

    /// The next one, evenly spread.
    pub fn next_word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Evenly spread below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_word()) * u128::from(bound)) >> 64) as u64
    }

    /// Evenly spread from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_word() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
