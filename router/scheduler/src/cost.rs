//! How long a step takes: fixed + decodes * a + prompt tokens * b, fitted from outcomes.
//!
//! Recursive least squares with exponential forgetting (Haykin, Adaptive Filter Theory, ch. 10).
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
/// Initial and largest variance: beyond it, forgetting would amplify noise in steady traffic.
const VARIANCE: f64 = 1e4;
/// Features are scaled to the order of one: microseconds per thousand tokens, not per token.
const SCALE: f64 = 1e-3;

/// The fitted model.
#[derive(Clone, Debug)]
pub(crate) struct StepCost {
    /// Microseconds: fixed, per thousand decodes, per thousand prompt tokens.
    weights: [f64; 3],
    covariance: [[f64; 3]; 3],
    observed: u32,
}

impl StepCost {
    pub(crate) fn new() -> Self {
        let mut covariance = [[0.0; 3]; 3];
        for (i, row) in covariance.iter_mut().enumerate() {
            row[i] = VARIANCE;
        }
        Self {
            weights: [0.0; 3],
            covariance,
            observed: 0,
        }
    }

    /// Learns from a step that took `duration` microseconds.
    pub(crate) fn observe(&mut self, load: Load, duration: u64) {
        if duration == 0 {
            return;
        }
        self.observed = self.observed.saturating_add(1);
        let x = features(load);
        let px = self.covariance.map(|row| dot(&row, &x));
        let gain = px.map(|p| p / (FORGETTING + dot(&x, &px)));
        let error = duration as f64 - dot(&self.weights, &x);
        for (weight, gain) in self.weights.iter_mut().zip(gain) {
            *weight += gain * error;
        }
        let trace = self.covariance[0][0] + self.covariance[1][1] + self.covariance[2][2];
        let forgetting = if trace < 3.0 * VARIANCE {
            FORGETTING
        } else {
            1.0
        };
        for (row, gain) in self.covariance.iter_mut().zip(gain) {
            for (entry, px) in row.iter_mut().zip(px) {
                *entry = (*entry - gain * px) / forgetting;
            }
        }
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

    #[test]
    fn recovers_the_costs_it_was_shown() {
        let mut cost = StepCost::new();
        for step in 0..400_u32 {
            let load = Load {
                decodes: step % 61,
                prompt: (step % 7) * 100,
            };
            cost.observe(
                load,
                5_000 + 30 * u64::from(load.decodes) + 4 * u64::from(load.prompt),
            );
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

    #[test]
    fn steady_traffic_does_not_blow_the_fit_up() {
        let mut cost = StepCost::new();
        for step in 0..100_000_u64 {
            cost.observe(
                Load {
                    decodes: 32,
                    prompt: 0,
                },
                10_000 + step % 2,
            );
        }
        let predicted = cost
            .predict(Load {
                decodes: 32,
                prompt: 0,
            })
            .unwrap();
        assert!((9_990..10_010).contains(&predicted), "{predicted}");
        assert!(cost.weights.iter().all(|weight| weight.is_finite()));
    }

    #[test]
    fn says_nothing_before_it_has_seen_enough() {
        let mut cost = StepCost::new();
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
