//! Random numbers that a seed repeats.
//!
//! `ADJUTANT_KILLS` sets the number of kills on each engine, `ADJUTANT_KILL_SEED` the seed.

/// A sequence of numbers that follows from its seed (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Returns the sequence of the seed of this process, which is printed.
    pub(super) fn seeded() -> Self {
        let seed = seed();
        println!("ADJUTANT_KILL_SEED={seed}");
        Self::of(seed, 0)
    }

    /// Returns the sequence of this seed for the experiment with this number.
    pub(super) fn of(seed: u64, number: u64) -> Self {
        let mut random = Self(seed ^ number.wrapping_mul(0xA076_1D64_78BD_642F));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if there is none.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// Returns true once in so many times.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Returns the seed of the environment, or a new one.
pub(super) fn seed() -> u64 {
    number("ADJUTANT_KILL_SEED").unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0)
}

/// Returns the number of kills on each engine.
pub(super) fn kills() -> u64 {
    number("ADJUTANT_KILLS").unwrap_or(50)
}

/// Returns the number in a variable of the environment, if there is one.
pub(super) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
