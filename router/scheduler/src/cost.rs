//! How long a step takes: fixed + decodes * a + prompt tokens * b, fitted from outcomes.
//!
//! Least squares with exponential forgetting, kept as normal equations (the information form of
//! recursive least squares; Haykin, Adaptive Filter Theory, ch. 10). The covariance form is cheaper,
//! but diverges when traffic is steady for long: forgetting without news makes it lose symmetry.
//! Here what traffic does not tell apart stays as it was, by a weak pull to the last fit.
//! The growth of attention with context is not modelled: forgetting follows it.

/// What a step was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Runs of sequences that decode.
    pub(crate) decodes: u32,
    /// Prompt tokens.
    pub(crate) prompt: u32,
}

/// Half of an observation's weight is gone after about 140 steps.
const FORGETTING: f64 = 0.995;
/// Steps before the fit is used.
const LEARNING: u32 = 8;
/// The pull to the last fit, in observations of one feature at its scale.
const PULL: f64 = 1e-5;
/// Features are scaled to the order of one: microseconds per thousand tokens, not per token.
const SCALE: f64 = 1e-3;
/// A step that takes longer than this many times its prediction was disturbed: it counts as that.
const DISTURBED: u64 = 4;

/// The fitted model.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCost {
    /// Microseconds: fixed, per thousand decodes, per thousand prompt tokens.
    weights: [f64; 3],
    /// Decayed sum of the features' outer products.
    information: [[f64; 3]; 3],
    /// Decayed sum of features times durations.
    moments: [f64; 3],
    observed: u32,
}

impl StepCost {
    /// Learns from a step that took `duration` microseconds; 0 = unknown.
    pub(crate) fn observe(&mut self, load: Load, duration: u64) {
        if duration == 0 {
            return;
        }
        let expected = self.predict(load).filter(|&expected| expected > 0);
        let limit = expected.map_or(u64::MAX, |expected| expected.saturating_mul(DISTURBED));
        self.observed = self.observed.saturating_add(1);
        let x = features(load);
        let y = duration.min(limit) as f64;
        let mut equations = [[0.0; 4]; 3];
        for i in 0..3 {
            self.moments[i] = FORGETTING * self.moments[i] + x[i] * y;
            for j in 0..3 {
                self.information[i][j] = FORGETTING * self.information[i][j] + x[i] * x[j];
                equations[i][j] = self.information[i][j];
            }
            equations[i][i] += PULL;
            equations[i][3] = self.moments[i] + PULL * self.weights[i];
        }
        self.weights = solve(equations);
    }

    /// Microseconds that a step takes; None until enough steps were seen.
    pub(crate) fn predict(&self, load: Load) -> Option<u64> {
        (self.observed >= LEARNING).then(|| {
            let positive = self.weights.map(|weight| weight.max(0.0));
            dot(&positive, &features(load)) as u64
        })
    }

    /// Prompt tokens that fit a step of `target` microseconds beside `decodes`; None until enough
    /// steps were seen.
    pub(crate) fn prompt_tokens(&self, decodes: u32, target: u64) -> Option<u32> {
        let taken = self.predict(Load { decodes, prompt: 0 })?;
        let left = target.saturating_sub(taken) as f64;
        let each = (self.weights[2] * SCALE).max(1e-3);
        Some((left / each).min(f64::from(u32::MAX)) as u32)
    }
}

/// Gaussian elimination of a symmetric positive definite system: no pivoting needed.
fn solve(mut equations: [[f64; 4]; 3]) -> [f64; 3] {
    for pivot in 0..3 {
        let row = equations[pivot];
        for lower in &mut equations[pivot + 1..] {
            let factor = lower[pivot] / row[pivot];
            for (entry, above) in lower.iter_mut().zip(row) {
                *entry -= factor * above;
            }
        }
    }
    let [a, b, c] = equations;
    let z = c[3] / c[2];
    let y = (b[3] - b[2] * z) / b[1];
    let x = (a[3] - a[1] * y - a[2] * z) / a[0];
    [x, y, z]
}

fn features(load: Load) -> [f64; 3] {
    [
        1.0,
        f64::from(load.decodes) * SCALE,
        f64::from(load.prompt) * SCALE,
    ]
}

fn dot(a: &[f64; 3], b: &[f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(load: Load) -> u64 {
        5_000 + 30 * u64::from(load.decodes) + 4 * u64::from(load.prompt)
    }

    #[test]
    fn recovers_the_costs_it_was_shown() {
        let mut cost = StepCost::default();
        for step in 0..400_u32 {
            let load = Load {
                decodes: step % 61,
                prompt: (step % 7) * 100,
            };
            cost.observe(load, took(load));
        }
        let predicted = cost
            .predict(Load {
                decodes: 100,
                prompt: 1_000,
            })
            .unwrap();
        assert!((11_900..12_100).contains(&predicted), "{predicted}");
        let tokens = cost.prompt_tokens(100, 12_000).unwrap();
        assert!((950..1_050).contains(&tokens), "{tokens}");
    }

    /// A quiet night: few streams, now and then a prompt. The fit must neither drift nor diverge.
    #[test]
    fn keeps_what_it_knows_through_steady_traffic() {
        let mut cost = StepCost::default();
        for step in 0..1_000_000_u32 {
            let prompt = if step % 1_000 == 0 { 500 } else { 0 };
            let load = Load {
                decodes: 5 + step / 100 % 3,
                prompt,
            };
            cost.observe(load, took(load));
        }
        let tokens = cost.prompt_tokens(6, 9_180).unwrap();
        assert!((950..1_050).contains(&tokens), "{tokens}");
    }

    #[test]
    fn a_disturbed_step_counts_little() {
        let mut cost = StepCost::default();
        let load = Load {
            decodes: 32,
            prompt: 0,
        };
        for step in 0..400 {
            let disturbed = step % 100 == 99;
            cost.observe(load, if disturbed { 60_000_000 } else { took(load) });
        }
        let predicted = cost.predict(load).unwrap();
        assert!((5_900..6_300).contains(&predicted), "{predicted}");
    }

    #[test]
    fn says_nothing_before_it_has_seen_enough() {
        let mut cost = StepCost::default();
        cost.observe(
            Load {
                decodes: 1,
                prompt: 0,
            },
            10,
        );
        cost.observe(
            Load {
                decodes: 1,
                prompt: 0,
            },
            0,
        );
        assert_eq!(cost.predict(Load::default()), None);
        assert_eq!(cost.prompt_tokens(1, 1_000), None);
    }
}
