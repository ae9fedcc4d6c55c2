//! A linear model of step times.
//!
//! Least squares with exponential forgetting, kept as normal equations (the information form of
//! recursive least squares; Haykin, Adaptive Filter Theory, ch. 10). The covariance form is cheaper
//! but diverges under long steady traffic, because forgetting without new information makes it lose
//! symmetry. Here a weak pull to the last fit keeps the weights that the traffic does not identify.

/// An observation loses half of its weight after about 140 steps.
const FORGETTING: f64 = 0.995;
/// Observations before a fit is used.
pub(crate) const LEARNING: u32 = 4;
/// The pull to the last fit, in observations of one feature at its scale.
const PULL: f64 = 1e-5;
/// The pull to a prior, in the same unit.
const TIE: f64 = 6.0;

/// Normal equations: a row per feature, with its right-hand side as the last column.
type Equations = [[f64; 4]; 3];

/// A linear function of three features: a constant, and two slopes that disturbed steps cannot make
/// negative.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fit {
    /// One per feature, in the unit of the fitted values.
    pub(crate) weights: [f64; 3],
    /// Decayed sum of the features' outer products.
    information: [[f64; 3]; 3],
    /// Decayed sum of features times values.
    moments: [f64; 3],
    pub(crate) observed: u32,
    /// Whether the last step was disturbed.
    pub(crate) disturbed: bool,
    /// Consecutive steps for which the fit was wrong.
    pub(crate) drift_steps: u32,
}

/// Knowledge about a fit before any observation.
pub(crate) struct Prior {
    /// The last slope, in units of the constant; 0 = unknown.
    pub(crate) last_slope: f64,
    /// Sets of features to leave out where a slope would be negative, tried in turn.
    pub(crate) fallbacks: &'static [&'static [usize]],
}

impl Fit {
    pub(crate) fn is_known(&self) -> bool {
        self.observed >= LEARNING
    }

    pub(crate) fn at(&self, x: [f64; 3]) -> f64 {
        let [a, b, c] = self.weights;
        a * x[0] + b * x[1] + c * x[2]
    }

    /// Keeps the weights until the next observations, which then outweigh them.
    pub(crate) fn forget_observations(&mut self) {
        *self = Self {
            weights: self.weights,
            observed: self.observed,
            ..Self::default()
        };
    }

    /// Learns that `x` takes `y`. More work never takes less time, but disturbed steps, or steps
    /// much alike, may suggest so, and other work would then seem free. So the fit leaves out the
    /// first set of the prior's `fallbacks` with which no slope is negative, or else the last set
    /// and clamps negative slopes to 0.
    pub(crate) fn observe(&mut self, x: [f64; 3], y: f64, prior: &Prior) {
        self.observed = self.observed.saturating_add(1);
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
        for features in prior.fallbacks {
            let slope = match features.contains(&2) {
                true => 0.0,
                false => prior.last_slope,
            };
            self.weights = solve(without(tie(equations, slope), features));
            if self.weights[1..].iter().all(|&slope| slope >= 0.0) {
                return;
            }
        }
        for slope in &mut self.weights[1..] {
            *slope = slope.max(0.0);
        }
    }
}

/// Returns the same equations and, if `slope` is not 0, TIE observations of length 1 that the last
/// feature weighs `slope` times as much as the first.
fn tie(mut equations: Equations, slope: f64) -> Equations {
    if slope > 0.0 {
        let weight = TIE / (1.0 + slope * slope);
        equations[0][0] += weight * slope * slope;
        equations[0][2] -= weight * slope;
        equations[2][0] -= weight * slope;
        equations[2][2] += weight;
    }
    equations
}

/// Returns the same equations with the weights of these features fixed to 0.
fn without(mut equations: Equations, features: &[usize]) -> Equations {
    for &feature in features {
        for row in &mut equations {
            row[feature] = 0.0;
        }
        equations[feature] = [0.0; 4];
        equations[feature][feature] = 1.0;
    }
    equations
}

/// Solves a symmetric positive definite system by Gaussian elimination; needs no pivoting.
fn solve(mut equations: Equations) -> [f64; 3] {
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
