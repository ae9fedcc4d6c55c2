//! Types of setting values: sizes, devices, dtypes, values with a reason.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;

/// A value and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedValue<T> {
    /// The value.
    pub value: T,
    /// The reason, for `--explain`.
    pub why: String,
}

/// A number of bytes, such as `2GiB`, `500MB` or `1048576`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A number of seconds, such as `30s`, `5m`, `1h` or `30`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub u32);

/// The device of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// CUDA if a device is found, else the CPU.
    Auto,
    /// NVIDIA GPUs, one per rank.
    Cuda,
    /// The host's CPU.
    Cpu,
}

/// A device after `auto` is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// NVIDIA GPUs, one per rank.
    Cuda,
    /// The host's CPU.
    Cpu,
}

/// The dtype of weights, activations and KV blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DtypeChoice {
    /// The checkpoint's own half precision on CUDA, float32 on the CPU.
    Auto,
    /// 16 bits with a wide range.
    Bfloat16,
    /// 16 bits with a fine resolution.
    Float16,
    /// 32 bits.
    Float32,
    /// 64 bits, for exact comparisons; CPU only.
    Float64,
}

/// The method of `penstock quantize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QuantizeMethod {
    /// int4 or int8; later inputs make up for the error of earlier ones.
    Gptq,
    /// int4 with zero points; finer steps for inputs with large activations.
    Awq,
    /// int4 or int8, rounded to nearest.
    Rtn,
    /// float8 e4m3 with a scale per output.
    Fp8,
}

/// The dtype of keys and values in KV blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvDtype {
    /// That of the model.
    Auto,
    /// 8-bit floats of 4 exponent and 3 mantissa bits.
    #[value(name = "fp8_e4m3", aliases = ["fp8_e4m3fn", "fp8"])]
    Fp8E4m3,
    /// 8-bit floats of 5 exponent and 2 mantissa bits.
    #[value(name = "fp8_e5m2")]
    Fp8E5m2,
    /// 8-bit integers with a scale and a zero per token and head.
    Int8,
    /// 4-bit integers with a scale and a zero per token and head.
    Int4,
}

/// What computes the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelBackend {
    /// Penstock's own implementation if it has the model's family, else transformers.
    Auto,
    /// Penstock's own implementation.
    Native,
    /// transformers' module, over Penstock's paged attention.
    Transformers,
}

/// A dtype after `auto` is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 16 bits with a wide range.
    Bfloat16,
    /// 16 bits with a fine resolution.
    Float16,
    /// 32 bits.
    Float32,
    /// 64 bits.
    Float64,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Failures and warnings.
    Warn,
    /// Also the server's main events.
    Info,
    /// Also details of these events.
    Debug,
}

/// The longest time that a setting may be: a day.
const MAX_SECONDS: u32 = 86_400;
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl<T> ResolvedValue<T> {
    /// Creates a value with its reason.
    pub(crate) fn new(value: T, why: impl Into<String>) -> Self {
        Self {
            value,
            why: why.into(),
        }
    }
}

impl QuantizeMethod {
    /// Returns the flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::Rtn => "rtn",
            Self::Fp8 => "fp8",
        }
    }
}

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = match text.char_indices().next_back() {
            Some((at, 's')) => (&text[..at], 1),
            Some((at, 'm')) => (&text[..at], 60),
            Some((at, 'h')) => (&text[..at], 3600),
            _ => (text, 1),
        };
        let seconds = number.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
        seconds
            .filter(|&n| n <= MAX_SECONDS)
            .map(Self)
            .ok_or_else(|| "use a number of seconds, such as 30s, 5m or 1h, up to 24h".to_owned())
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("a size is a number with a unit such as 2GiB or 500MB, not {text:?}");
        let split = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit.trim();
        let scale = if unit.is_empty() {
            1
        } else {
            let known = UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit));
            known.ok_or_else(wrong)?.1
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Self).ok_or_else(wrong);
        }
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = number * scale as f64;
        if bytes.is_finite() && bytes < u64::MAX as f64 {
            Ok(Self(bytes as u64))
        } else {
            Err(wrong())
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("TiB", 1u64 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        match units.iter().find(|(_, scale)| self.0 >= *scale) {
            Some((unit, scale)) if self.0.is_multiple_of(*scale) => {
                write!(f, "{} {unit}", self.0 / scale)
            }
            Some((unit, scale)) => write!(f, "{:.1} {unit}", self.0 as f64 / *scale as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl Device {
    /// Returns the name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        }
    }
}

impl Dtype {
    /// Returns the name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bfloat16 => "bfloat16",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// Returns the bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Bfloat16 | Self::Float16 => 2,
            Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    /// Returns the dtype of this name in a config.json; `None` if it is not supported.
    pub fn from_name(name: &str) -> Option<Self> {
        let known = [Self::Bfloat16, Self::Float16, Self::Float32, Self::Float64];
        known
            .into_iter()
            .find(|dtype| dtype.name() == name.trim_start_matches("torch."))
    }
}

impl ModelBackend {
    /// Returns the name in the protocol, which is the flag's value too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Transformers => "transformers",
        }
    }
}

impl KvDtype {
    /// Returns the name in the protocol, which is the flag's value too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Fp8E5m2 => "fp8_e5m2",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Returns the bits of one element if the model computes in `dtype`.
    pub fn bits(self, dtype: Dtype) -> u64 {
        match self {
            Self::Auto => 8 * dtype.bytes(),
            Self::Fp8E4m3 | Self::Fp8E5m2 | Self::Int8 => 8,
            Self::Int4 => 4,
        }
    }

    /// Returns the bytes of scale and zero of one key or value, in float16 each.
    pub fn parameter_bytes(self) -> u64 {
        match self {
            Self::Auto | Self::Fp8E4m3 | Self::Fp8E5m2 => 0,
            Self::Int8 | Self::Int4 => 4,
        }
    }

    /// Returns the bytes of a key or a value of one token and head.
    pub fn head_bytes(self, dtype: Dtype, head_dim: u64) -> u64 {
        head_dim * self.bits(dtype) / 8 + self.parameter_bytes()
    }
}

impl DtypeChoice {
    /// Returns the chosen dtype; `None` for `auto`.
    pub fn typed(self) -> Option<Dtype> {
        match self {
            Self::Auto => None,
            Self::Bfloat16 => Some(Dtype::Bfloat16),
            Self::Float16 => Some(Dtype::Float16),
            Self::Float32 => Some(Dtype::Float32),
            Self::Float64 => Some(Dtype::Float64),
        }
    }
}

impl LogLevel {
    /// Returns the name in log filters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_a_unit_and_a_bound() {
        let parsed = |text: &str| text.parse::<Seconds>().ok().map(|seconds| seconds.0);
        for (text, expected) in [
            ("0", 0),
            ("30", 30),
            ("30s", 30),
            ("5m", 300),
            ("24h", 86_400),
        ] {
            assert_eq!(parsed(text), Some(expected), "{text}");
        }
        for text in ["", "s", "-1", "1.5s", "25h", "4294967295h", "30d"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let read = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        assert_eq!(read("2GiB"), Ok(2 << 30));
        assert_eq!(read("2 gib"), Ok(2 << 30));
        assert_eq!(read("500MB"), Ok(500_000_000));
        assert_eq!(read("1.5KiB"), Ok(1536));
        assert_eq!(read("4096"), Ok(4096));
        for wrong in [
            "",
            "GiB",
            "2 parsecs",
            "-1GiB",
            "1e3",
            "99999999999TiB",
            "1.2.3MB",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn sizes_are_printed_with_binary_units() {
        assert_eq!(ByteSize(2 << 30).to_string(), "2 GiB");
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteSize(12).to_string(), "12 B");
    }
}
