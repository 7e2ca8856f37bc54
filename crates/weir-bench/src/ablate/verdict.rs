//! What a rule gains, beside the noise.

use crate::median;

/// From the median absolute deviation to the standard deviation of normally distributed values.
const MAD_TO_SIGMA: f64 = 1.4826;
/// From a standard deviation to that of the median of as many values, times the square root of their number.
const MEDIAN_SIGMA: f64 = 1.2533;
/// Standard errors of the median that a gain must exceed. With some hundred figures two would be exceeded by
/// chance a dozen times.
const ERRORS: f64 = 3.0;
/// No less is ever told from noise: a few runs may agree by chance.
const NOISE_MIN: f64 = 0.01;
/// Runs that a verdict needs.
const RUNS_MIN: usize = 3;

/// What is said of a rule, in one figure or in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It gains more than the noise.
    Pays,
    /// Neither of the two.
    NotShown,
    /// It loses more than the noise.
    Costs,
}

impl Verdict {
    /// The verdict in words.
    pub fn text(self) -> &'static str {
        match self {
            Verdict::Pays => "pays",
            Verdict::NotShown => "does not show",
            Verdict::Costs => "costs",
        }
    }

    /// Of all figures of a rule: a gain anywhere is a reason for it, a loss is one against it where it gains
    /// nowhere.
    pub fn of_all(verdicts: &[Verdict]) -> Verdict {
        let any = |verdict| verdicts.contains(&verdict);
        match (any(Verdict::Pays), any(Verdict::Costs)) {
            (true, _) => Verdict::Pays,
            (false, true) => Verdict::Costs,
            (false, false) => Verdict::NotShown,
        }
    }
}

/// One figure of one rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// How many times better the figure is with the rule than without it: the median.
    pub gain: f64,
    /// How far that may be off.
    pub noise: f64,
    /// Of so many runs.
    pub runs: usize,
}

impl Found {
    /// Of the gains of single runs. `None`: there are none.
    pub fn of(gains: &[f64]) -> Option<Found> {
        let gain = median(gains.iter().copied())?;
        let deviation = median(gains.iter().map(|one| (one - gain).abs()))? * MAD_TO_SIGMA;
        let noise = ERRORS * MEDIAN_SIGMA * deviation / (gains.len() as f64).sqrt();
        Some(Found { gain, noise: noise.max(NOISE_MIN), runs: gains.len() })
    }

    /// Whether it shows.
    pub fn verdict(self) -> Verdict {
        match self.gain - 1.0 {
            _ if self.runs < RUNS_MIN => Verdict::NotShown,
            more if more > self.noise => Verdict::Pays,
            more if -more > self.noise => Verdict::Costs,
            _ => Verdict::NotShown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_shows_where_it_exceeds_what_runs_differ_by() {
        let verdict = |gains: &[f64]| Found::of(gains).unwrap().verdict();
        assert_eq!(verdict(&[1.10, 1.11, 1.09, 1.12, 1.08, 1.10, 1.10]), Verdict::Pays);
        assert_eq!(verdict(&[0.90, 0.91, 0.89, 0.92, 0.88, 0.90, 0.90]), Verdict::Costs);
        assert_eq!(verdict(&[1.10, 1.40, 0.80, 1.30, 0.90, 1.00, 1.20]), Verdict::NotShown);
        assert_eq!(verdict(&[1.005; 7]), Verdict::NotShown, "less than is ever told");
        assert_eq!(verdict(&[2.0, 2.0]), Verdict::NotShown, "two runs say nothing");
        assert_eq!(Found::of(&[]), None);
    }

    #[test]
    fn noise_is_three_standard_errors_of_the_median_and_one_odd_run_does_not_count() {
        let found = Found::of(&[1.0, 1.1, 1.2, 1.3, 9.0]).unwrap();
        assert!((found.gain - 1.2).abs() < 1e-9 && found.runs == 5);
        let sigma = 0.1 * MAD_TO_SIGMA;
        assert!((found.noise - 3.0 * 1.2533 * sigma / 5.0_f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn a_gain_anywhere_is_worth_a_rule() {
        use Verdict::{Costs, NotShown, Pays};
        assert_eq!(Verdict::of_all(&[NotShown, Costs, Pays]), Pays);
        assert_eq!(Verdict::of_all(&[NotShown, Costs]), Costs);
        assert_eq!(Verdict::of_all(&[NotShown]), NotShown);
    }
}
