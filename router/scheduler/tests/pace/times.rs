//! The times of steps on a device.

/// Tokens of a step, and the microseconds of its matrix products in all 32 layers and the head.
const PRODUCTS: [(u32, f64); 12] = [
    (1, 3_500.0),
    (32, 3_870.0),
    (64, 4_100.0),
    (128, 5_030.0),
    (192, 5_800.0),
    (256, 6_400.0),
    (384, 9_000.0),
    (512, 11_000.0),
    (768, 16_400.0),
    (1_024, 19_500.0),
    (1_536, 30_300.0),
    (2_048, 40_800.0),
];
/// Per token of larger steps.
const PRODUCT: f64 = 20.7;
/// Norms, gates and rotations, per token; sampling, launches and the like, per step.
const TOKEN: f64 = 1.4;
const STEP_ALONE: f64 = 550.0;
/// Per pair of a prompt token and a token that it attends to, and the cost of splitting long
/// contexts.
const PAIR: f64 = 9.8e-4;
const SPLIT: f64 = 600.0;
/// Pairs of a step's prompt tokens above which contexts are split.
const DEEP: f64 = 200_000.0;
/// Per token that a decode attends to: 128 KiB at 4 TB/s.
const CONTEXT: f64 = 0.0322;

/// The same on an H100, whose memory is slower: one sequence takes 5.5 ms, 32 of 640 tokens 6.8, with
/// 224 prompt tokens 9.2, and 212 of 1,100 with 812 prompt tokens 31.
const H100_PRODUCTS: [(u32, f64); 12] = [
    (1, 4_950.0),
    (32, 5_270.0),
    (64, 5_550.0),
    (128, 6_300.0),
    (192, 6_900.0),
    (256, 7_350.0),
    (384, 9_300.0),
    (512, 11_000.0),
    (768, 16_000.0),
    (1_024, 18_300.0),
    (1_536, 29_000.0),
    (2_048, 39_500.0),
];
const H100_CONTEXT: f64 = 0.045;

/// Qwen3-30B-A3B on an H200 (docs/design/moe.md): 32 tokens read nearly all experts.
const EXPERT_PRODUCTS: [(u32, f64); 12] = [
    (1, 2_500.0),
    (32, 14_300.0),
    (64, 15_300.0),
    (128, 16_000.0),
    (192, 16_300.0),
    (256, 17_500.0),
    (384, 19_300.0),
    (512, 20_700.0),
    (768, 22_400.0),
    (1_024, 25_000.0),
    (1_536, 29_800.0),
    (2_048, 35_000.0),
];
/// Per token of larger steps, per pair, and per token that a decode attends to.
const EXPERT_TOKEN: f64 = 11.0;
const EXPERT_PAIR: f64 = 1.31e-3;
const EXPERT_CONTEXT: f64 = 0.0261;
/// Per prompt token beside decodes: the least between two sizes.
const EXPERT_PROMPT: f64 = 9.6;

/// A 70B model in int4 on an H200 (bench/results/quantization.md): small steps have kernels of their
/// own, and a prompt token costs much less in some sizes than in others.
const LARGE_PRODUCTS: [(u32, f64); 12] = [
    (1, 12_300.0),
    (32, 15_200.0),
    (64, 21_000.0),
    (128, 35_000.0),
    (192, 50_000.0),
    (256, 51_000.0),
    (384, 91_500.0),
    (512, 91_500.0),
    (768, 139_000.0),
    (1_024, 171_000.0),
    (1_536, 265_000.0),
    (2_048, 365_000.0),
];
/// Per token of larger steps, per pair, and per token that a decode attends to.
const LARGE_TOKEN: f64 = 178.0;
const LARGE_PAIR: f64 = 3.5e-3;
const LARGE_CONTEXT: f64 = 0.082;

/// Under sustained load: microseconds per prompt token in steps of any size, and per token that a
/// decode attends to, as on an H200 of 708 TFLOP/s: 256 decodes take 16.5 ms.
const SUSTAINED_TOKEN: f64 = 21.0;
const SUSTAINED_CONTEXT: f64 = 0.0298;

/// How fast the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// As in bursts.
    Burst,
    /// As under load.
    Sustained,
    /// Three times as slow as in bursts.
    Slow,
    /// Ten times as fast, behind a host that takes 8 ms to launch any step.
    Hosted,
    /// As in bursts, on an H100.
    H100,
    /// A mixture of experts.
    Experts,
    /// A model of 70 billion parameters.
    Large,
}

/// One step, as the tests see it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    pub(crate) decodes: u32,
    pub(crate) prompt: u32,
    pub(crate) took: u64,
    /// Tokens that the decodes attend to.
    pub(crate) context: f64,
    /// Pairs of a prompt token and a token that it attends to.
    pub(crate) pairs: f64,
}

impl Speed {
    /// Returns the microseconds of a step.
    pub(crate) fn micros(self, step: Step) -> f64 {
        match self {
            Self::Burst => burst(step),
            Self::Sustained => sustained(step),
            Self::Slow => 3.0 * burst(step),
            Self::Hosted => (burst(step) / 10.0).max(8_000.0),
            Self::H100 => timed(step, &H100_PRODUCTS, H100_CONTEXT),
            Self::Experts => experts(step),
            Self::Large => extended(
                step,
                &LARGE_PRODUCTS,
                LARGE_TOKEN,
                (LARGE_CONTEXT, LARGE_PAIR),
            ),
        }
    }
}

/// Returns the tokens of steps whose times are known.
pub(crate) fn table_sizes() -> impl Iterator<Item = u32> {
    PRODUCTS.iter().map(|(tokens, _)| *tokens)
}

/// Returns the microseconds of a step on an H200.
fn burst(step: Step) -> f64 {
    timed(step, &PRODUCTS, CONTEXT)
}

/// Returns the microseconds of a step on a device: the times of its matrix products, and per token
/// that a decode attends to.
fn timed(step: Step, table: &[(u32, f64)], context: f64) -> f64 {
    let tokens = f64::from(step.decodes + step.prompt);
    let split = if step.pairs > DEEP { SPLIT } else { 0.0 };
    let attention = context * step.context + PAIR * step.pairs + split;
    STEP_ALONE + products_of(step, table) + TOKEN * tokens + attention
}

/// Returns the microseconds of a step of a mixture of experts.
fn experts(step: Step) -> f64 {
    let attention = (EXPERT_CONTEXT, EXPERT_PAIR);
    extended(step, &EXPERT_PRODUCTS, EXPERT_TOKEN, attention)
}

/// Returns the microseconds of a step: the times of its matrix products, with so much more per token
/// of steps larger than those of the table, and of attention per context token and per pair.
fn extended(step: Step, table: &[(u32, f64)], more: f64, (context, pair): (f64, f64)) -> f64 {
    let tokens = step.decodes + step.prompt;
    let products = match table.last() {
        Some((size, took)) if tokens > *size => took + more * f64::from(tokens - size),
        _ => products_of(step, table),
    };
    products + context * step.context + pair * step.pairs
}

/// Returns the microseconds of a step under load. Padding costs as much as prompt tokens.
fn sustained(step: Step) -> f64 {
    let alone = Step { prompt: 0, ..step };
    let products = if step.decodes > 0 {
        products(alone)
    } else {
        0.0
    };
    let decoding = products + TOKEN * f64::from(step.decodes) + SUSTAINED_CONTEXT * step.context;
    let tokens = step.decodes + step.prompt;
    let padded = table_sizes().find(|size| *size >= tokens);
    let more = match step.prompt {
        0 => 0,
        _ => padded.unwrap_or(tokens) - step.decodes,
    };
    STEP_ALONE + decoding + SUSTAINED_TOKEN * f64::from(more)
}

/// Returns the microseconds of a closed loop if every step had all streams decode without padding:
/// no order of the same work takes less.
pub(crate) fn least(streams: u32, requests: u32, (prompt, answer): (u32, u32)) -> f64 {
    let step = sustained(Step {
        decodes: streams,
        context: f64::from(streams) * f64::from(prompt + answer / 2),
        ..Step::default()
    });
    let steps = f64::from(requests * answer) / f64::from(streams);
    steps * step + SUSTAINED_TOKEN * f64::from(requests * prompt)
}

/// The same for a mixture of experts, if prompt tokens cost as little as they do in any step.
pub(crate) fn least_of_experts(streams: u32, requests: u32, (prompt, answer): (u32, u32)) -> f64 {
    let step = experts(Step {
        decodes: streams,
        context: f64::from(streams) * f64::from(prompt + answer / 2),
        ..Step::default()
    });
    let steps = f64::from(requests * answer) / f64::from(streams);
    let pairs = f64::from(requests) * f64::from(prompt).powi(2) / 2.0;
    steps * step + EXPERT_PROMPT * f64::from(requests * prompt) + EXPERT_PAIR * pairs
}

/// Returns the microseconds of a step's matrix products. Steps with prompts are padded.
fn products(step: Step) -> f64 {
    products_of(step, &PRODUCTS)
}

fn products_of(step: Step, table: &[(u32, f64)]) -> f64 {
    let tokens = step.decodes + step.prompt;
    let Some(after) = table.iter().position(|(size, _)| *size >= tokens) else {
        return PRODUCT * f64::from(tokens);
    };
    let (size, took) = table[after];
    if step.prompt > 0 || after == 0 {
        return took;
    }
    let (less, sooner) = table[after - 1];
    sooner + (took - sooner) * f64::from(tokens - less) / f64::from(size - less)
}
