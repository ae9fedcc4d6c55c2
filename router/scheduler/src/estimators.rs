//! The two estimators of step times: a linear fit, and a table of sizes.
//!
//! The fit is least squares with exponential forgetting, kept as normal equations (the information form of
//! recursive least squares; Haykin, Adaptive Filter Theory, ch. 10). The covariance form is cheaper
//! but diverges under long steady traffic, because forgetting without new information makes it lose
//! symmetry. Here a weak pull to the last fit keeps the weights that the traffic does not identify.
//!
//! The table learns the cost of a step with prompts size by size. Padding, and tiles that just fill a
//! device or just do not, make that cost anything but linear.

use crate::ids::Micros;

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

/// Weight of the newest step of a size in its moving average.
const NEWEST: f64 = 0.25;
/// Microseconds after which a size's cost is doubtful and the size is tried again: its last step
/// may have waited for a graph, for example.
const REMEMBERED: u64 = 10_000_000;

/// Microseconds of a step without its attention, for each size that suits the workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SizeCosts {
    /// In ascending order of size.
    sizes: Vec<SizeCost>,
    /// When the last step ended.
    now: Micros,
}

/// The cost of one size.
#[derive(Clone, Copy, Debug)]
struct SizeCost {
    size: u32,
    /// Moving average.
    micros: f64,
    /// When it was last seen, if ever.
    last: Option<Micros>,
    /// Whether its last step was disturbed.
    disturbed: bool,
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

impl SizeCosts {
    pub(crate) fn new(sizes: &[u32]) -> Self {
        let seen = |&size| SizeCost {
            size,
            micros: 0.0,
            last: None,
            disturbed: false,
        };
        Self {
            sizes: sizes.iter().map(seen).collect(),
            now: Micros(0),
        }
    }

    /// Sets the time.
    pub(crate) fn tick(&mut self, now: Micros) {
        self.now = now;
    }

    /// Learns from a step of `tokens` tokens.
    pub(crate) fn observe(&mut self, tokens: u32, micros: f64) {
        let known = self.known(tokens).filter(|_| self.is_recent(tokens));
        let at = self.at(tokens);
        if let Some(seen) = self.sizes.get_mut(at) {
            seen.micros = known.map_or(micros, |known| known + NEWEST * (micros - known));
            seen.last = Some(self.now);
        }
    }

    /// Forgets the cost of the size of a step of `tokens` tokens.
    pub(crate) fn forget(&mut self, tokens: u32) {
        let at = self.at(tokens);
        if let Some(seen) = self.sizes.get_mut(at) {
            seen.last = None;
        }
    }

    /// Returns the cost of a step of `tokens` tokens, if its size was ever seen.
    pub(crate) fn known(&self, tokens: u32) -> Option<f64> {
        self.sizes.get(self.at(tokens))?.known()
    }

    /// Returns whether its size was seen recently.
    pub(crate) fn is_recent(&self, tokens: u32) -> bool {
        let seen = self.sizes.get(self.at(tokens));
        seen.is_some_and(|seen| seen.is_recent(self.now))
    }

    /// Returns the least recent cost of steps of `tokens` tokens or more.
    pub(crate) fn least(&self, tokens: u32) -> Option<f64> {
        let sizes = self.sizes[self.at(tokens)..].iter();
        let recent = sizes.filter(|seen| seen.is_recent(self.now));
        recent.filter_map(SizeCost::known).min_by(f64::total_cmp)
    }

    /// Returns the flag that the last step of this size was disturbed; None beyond the largest
    /// size.
    pub(crate) fn disturbed(&mut self, tokens: u32) -> Option<&mut bool> {
        let at = self.at(tokens);
        self.sizes.get_mut(at).map(|seen| &mut seen.disturbed)
    }

    /// Returns its cost at best, if only matrix products counted: its share of the size that costs
    /// the least per token.
    pub(crate) fn best_case(&self, tokens: u32) -> Option<f64> {
        let each = |seen: &SizeCost| Some(seen.known()? / f64::from(seen.size));
        let least = self.sizes.iter().filter_map(each).min_by(f64::total_cmp)?;
        let size = self.sizes.get(self.at(tokens))?.size;
        Some(least * f64::from(size))
    }

    /// Returns the index of the size that a step of `tokens` tokens is padded to.
    fn at(&self, tokens: u32) -> usize {
        self.sizes.partition_point(|seen| seen.size < tokens)
    }
}

impl SizeCost {
    fn known(&self) -> Option<f64> {
        self.last.map(|_| self.micros)
    }

    fn is_recent(&self, now: Micros) -> bool {
        let age = self.last.map(|last| now.0.saturating_sub(last.0));
        age.is_some_and(|age| age < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_costs_what_its_steps_cost() {
        let mut costs = SizeCosts::new(&[64, 128, 256]);
        for _ in 0..40 {
            costs.observe(130, 7_000.0);
            costs.observe(64, 5_000.0);
        }
        assert_eq!(
            (costs.known(256), costs.known(129)),
            (Some(7_000.0), Some(7_000.0))
        );
        assert_eq!((costs.known(1), costs.known(65)), (Some(5_000.0), None));
        for _ in 0..40 {
            costs.observe(200, 8_000.0);
        }
        let (now, before) = (costs.known(256).unwrap(), 8_000.0);
        assert!((now - before).abs() < 1.0, "{now}");
    }

    #[test]
    fn a_step_takes_no_less_than_the_least_of_its_sizes() {
        let mut costs = SizeCosts::new(&[64, 128, 256]);
        costs.observe(64, 5_000.0);
        costs.observe(200, 8_000.0);
        let least = [1, 65, 256, 257].map(|tokens| costs.least(tokens));
        assert_eq!(least, [Some(5_000.0), Some(8_000.0), Some(8_000.0), None]);
    }

    #[test]
    fn an_unobserved_size_is_assumed_as_good_as_the_best() {
        let mut costs = SizeCosts::new(&[64, 128, 256]);
        assert_eq!(costs.best_case(256), None);
        costs.observe(128, 6_400.0);
        costs.observe(60, 4_800.0);
        assert_eq!(
            (costs.best_case(256), costs.best_case(129)),
            (Some(12_800.0), Some(12_800.0))
        );
    }

    #[test]
    fn old_observations_are_tried_again() {
        let mut costs = SizeCosts::new(&[64, 128]);
        costs.observe(128, 60_000.0);
        costs.tick(Micros(REMEMBERED));
        costs.observe(64, 6_400.0);
        assert!(costs.is_recent(64) && !costs.is_recent(128));
        assert_eq!(
            (costs.known(128), costs.best_case(128)),
            (Some(60_000.0), Some(12_800.0))
        );
        costs.observe(128, 8_000.0);
        assert_eq!(
            costs.known(128),
            Some(8_000.0),
            "the outdated cost is forgotten"
        );
    }

    #[test]
    fn sizes_beyond_the_largest_are_unknown() {
        let mut costs = SizeCosts::new(&[64]);
        costs.observe(65, 5_000.0);
        assert_eq!(
            (costs.known(65), costs.best_case(65), costs.best_case(64)),
            (None, None, None)
        );
        let mut none = SizeCosts::default();
        none.observe(1, 1.0);
        assert_eq!((none.known(1), none.best_case(1)), (None, None));
    }
}
