//! Detection of a watermark in token ids: the test of Kirchenbauer et al., A Watermark for Large
//! Language Models, 2023. The kernel that embeds it is `penstock_kernels.process_logits`.

use std::collections::HashSet;

use penstock_request::sampling_params::Watermark;

/// The result of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Distinct pairs of neighbouring tokens. Repetitions are not counted: a pair is always green
    /// or never, so they add no evidence.
    pub pairs: u64,
    /// Pairs whose second token is green.
    pub green: u64,
    /// Standard deviations above the mean of text without a watermark.
    pub z: f64,
    /// Probability that text without a watermark has this many green pairs, or more; exact.
    pub p: f64,
}

/// Tests `ids` for the watermark `mark`, whose delta is not used.
pub fn score(ids: &[u32], mark: &Watermark) -> Score {
    let distinct: HashSet<(u32, u32)> = ids.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let pairs = distinct.len() as u64;
    let is_green = |&&(before, token): &&(u32, u32)| green(mark, before, token);
    let green = distinct.iter().filter(is_green).count() as u64;
    let (n, share) = (pairs as f64, mark.gamma);
    let deviation = (n * share * (1.0 - share)).sqrt();
    let z = if pairs == 0 {
        0.0
    } else {
        (green as f64 - n * share) / deviation
    };
    let p = tail(pairs, green, share);
    Score { pairs, green, z, p }
}

/// Whether `token` is green after the token `before`.
pub fn green(mark: &Watermark, before: u32, token: u32) -> bool {
    let state = splitmix(splitmix(mark.key, 0), u64::from(before));
    let bound = (mark.gamma * 4_294_967_296.0).round();
    ((splitmix(state, u64::from(token)) >> 32) as f64) < bound
}

/// Returns output number `index` of `SplitMix64` with this state (Steele, Lea, Flood 2014).
fn splitmix(state: u64, index: u64) -> u64 {
    let steps = index.wrapping_add(1);
    let mut z = state.wrapping_add(steps.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the probability of `least` or more successes in `n` trials of probability `share`.
fn tail(n: u64, least: u64, share: f64) -> f64 {
    let odds = share / (1.0 - share);
    let mut log = n as f64 * (1.0 - share).ln();
    let mut sum = 0.0;
    for k in 0..=n {
        if k >= least {
            sum += log.exp();
        }
        log += ((n - k) as f64 / (k + 1) as f64 * odds).ln();
    }
    f64::min(sum, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_exact() {
        for (n, least, share, expected) in [
            (0, 0, 0.5, 1.0),
            (4, 0, 0.25, 1.0),
            (4, 3, 0.5, 5.0 / 16.0),
            (10, 10, 0.25, 0.25_f64.powi(10)),
            (3, 1, 0.2, 1.0 - 0.8_f64.powi(3)),
        ] {
            let found = tail(n, least, share);
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        }
        assert!((tail(100_000, 50_000, 0.5) - 0.5).abs() < 0.002);
    }

    #[test]
    fn splitmix_gives_the_published_numbers() {
        assert_eq!(splitmix(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(splitmix(1_234_567, 2), 9_817_491_932_198_370_423);
    }

    #[test]
    fn a_pair_counts_once() {
        let mark = Watermark::default();
        let once = score(&[5, 6, 7], &mark);
        assert_eq!(score(&[5, 6, 7, 5, 6, 7, 5, 6], &mark).pairs, 3);
        assert_eq!(once.pairs, 2);
        let nothing = score(&[5], &mark);
        assert_eq!((nothing.pairs, nothing.z, nothing.p), (0, 0.0, 1.0));
    }

    #[test]
    fn gamma_of_all_pairs_are_green() {
        let ids: Vec<u32> = (0..40_001).map(|i| (i * 7919) % 50_021).collect();
        for gamma in [0.25, 0.5, 0.9] {
            let found = score(
                &ids,
                &Watermark {
                    gamma,
                    ..Watermark::default()
                },
            );
            assert!(found.z.abs() < 4.0 && found.pairs == 40_000, "{found:?}");
        }
    }
}
