//! Named tensors of the Open Inference Protocol, as JSON or raw bytes.

use std::fmt;

use penstock_request::error::{ApiError, Excerpt};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::{Number, Value};

use super::output::Output;
use crate::strict::check_room;

/// Maximum number of elements of a tensor: more than a context has tokens.
const MOST: usize = 1 << 20;

/// An input tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    /// The input's name.
    pub(super) name: String,
    /// Elements in row-major order.
    pub(super) elements: Elements,
}

/// An output tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OutTensor {
    pub(super) output: Output,
    pub(super) shape: Vec<i64>,
    pub(super) values: Values,
}

/// The elements of an output.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    Text(String),
    Uint32(Vec<u32>),
    Fp32(f32),
}

/// The elements of an input as JSON scalars. BYTES are strings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Elements(pub(super) Vec<Value>);

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datatype {
    Bool,
    /// Width in bytes.
    Unsigned(usize),
    /// Width in bytes.
    Signed(usize),
    Fp32,
    Fp64,
    Bytes,
}

/// Datatypes by name.
pub(crate) const DATATYPES: [(&str, Datatype); 12] = [
    ("BOOL", Datatype::Bool),
    ("UINT8", Datatype::Unsigned(1)),
    ("UINT16", Datatype::Unsigned(2)),
    ("UINT32", Datatype::Unsigned(4)),
    ("UINT64", Datatype::Unsigned(8)),
    ("INT8", Datatype::Signed(1)),
    ("INT16", Datatype::Signed(2)),
    ("INT32", Datatype::Signed(4)),
    ("INT64", Datatype::Signed(8)),
    ("FP32", Datatype::Fp32),
    ("FP64", Datatype::Fp64),
    ("BYTES", Datatype::Bytes),
];

impl Datatype {
    /// Returns the datatype called `name`; errors name `tensor`.
    pub(super) fn parse(name: &str, tensor: &str) -> Result<Self, ApiError> {
        let known = DATATYPES.iter().find(|(known, _)| *known == name);
        known.map(|(_, datatype)| *datatype).ok_or_else(|| {
            let rule = format!("has the unknown datatype `{}`", Excerpt::new(name));
            wrong(tensor, &rule)
        })
    }

    /// Reads the raw little-endian elements of `tensor`.
    pub(super) fn read(self, raw: &[u8], tensor: &str) -> Result<Elements, ApiError> {
        let values = match self {
            Self::Bytes => return texts(raw, tensor),
            Self::Bool => chunks(raw, 1, tensor)?
                .map(|byte| Value::Bool(byte[0] != 0))
                .collect(),
            Self::Unsigned(width) => chunks(raw, width, tensor)?
                .map(|bytes| Value::from(unsigned(bytes)))
                .collect(),
            Self::Signed(width) => chunks(raw, width, tensor)?
                .map(|bytes| Value::from(signed(bytes)))
                .collect(),
            Self::Fp32 => chunks(raw, 4, tensor)?
                .map(|bytes| float(f64::from(f32::from_bits(unsigned(bytes) as u32))))
                .collect(),
            Self::Fp64 => chunks(raw, 8, tensor)?
                .map(|bytes| float(f64::from_bits(unsigned(bytes))))
                .collect(),
        };
        Ok(Elements(values))
    }

    /// Fails unless all elements have this type.
    pub(super) fn check(self, elements: &Elements, tensor: &str) -> Result<(), ApiError> {
        let fits = |value: &Value| match self {
            Self::Bool => value.is_boolean(),
            Self::Unsigned(_) => value.is_u64(),
            Self::Signed(_) => value.is_i64(),
            Self::Fp32 | Self::Fp64 => value.is_number(),
            Self::Bytes => value.is_string(),
        };
        match elements.0.iter().all(fits) {
            true => Ok(()),
            false => Err(wrong(tensor, "has data that is not of its datatype")),
        }
    }
}

impl Tensor {
    /// Fails unless the shape fits the number of elements.
    pub(super) fn new(name: String, shape: &[i64], elements: Elements) -> Result<Self, ApiError> {
        let size = shape.iter().try_fold(1_usize, |size, dimension| {
            size.checked_mul(usize::try_from(*dimension).ok()?)
        });
        let given = elements.0.len();
        if size != Some(given) {
            let rule = format!("has a shape that does not hold its {given} element(s)");
            return Err(wrong(&name, &rule));
        }
        Ok(Self { name, elements })
    }

    /// Returns the only element, or all elements as a list if `list` is true.
    pub(super) fn value(self, list: bool) -> Result<Value, ApiError> {
        let Elements(mut values) = self.elements;
        if list {
            return Ok(Value::Array(values));
        }
        match (values.len(), values.pop()) {
            (1, Some(value)) => Ok(value),
            _ => Err(wrong(&self.name, "must have one element")),
        }
    }
}

impl Values {
    pub(super) fn datatype(&self) -> &'static str {
        match self {
            Self::Text(_) => "BYTES",
            Self::Uint32(_) => "UINT32",
            Self::Fp32(_) => "FP32",
        }
    }

    /// Returns the elements as raw little-endian bytes.
    pub(super) fn raw(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => {
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                [&length.to_le_bytes(), text.as_bytes()].concat()
            }
            Self::Uint32(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::Fp32(value) => value.to_le_bytes().to_vec(),
        }
    }

    /// Returns the elements as a JSON list.
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Text(text) => Value::from(vec![text.as_str()]),
            Self::Uint32(values) => Value::from(values.as_slice()),
            Self::Fp32(value) => Value::from(vec![*value]),
        }
    }

    /// Returns a single element by itself, more as a list.
    pub(super) fn scalar(&self) -> Value {
        match self {
            Self::Text(text) => Value::from(text.as_str()),
            Self::Uint32(values) => match values.as_slice() {
                [one] => Value::from(*one),
                many => Value::from(many),
            },
            Self::Fp32(value) => Value::from(*value),
        }
    }
}

/// Returns an error about the tensor of this name.
pub(super) fn wrong(tensor: &str, rule: &str) -> ApiError {
    let name = Excerpt::new(tensor).to_string();
    let message = format!("`inputs`: the tensor `{name}` {rule}");
    ApiError {
        param: Some(name.into()),
        ..ApiError::validation("inputs", message)
    }
}

fn chunks<'a>(
    raw: &'a [u8],
    width: usize,
    tensor: &str,
) -> Result<std::slice::ChunksExact<'a, u8>, ApiError> {
    let count = raw.len() / width;
    if !raw.len().is_multiple_of(width) {
        return Err(wrong(tensor, "has raw data that ends within an element"));
    }
    room(count, tensor)?;
    Ok(raw.chunks_exact(width))
}

fn room(count: usize, tensor: &str) -> Result<(), ApiError> {
    match count > MOST {
        true => Err(wrong(tensor, &format!("has more than {MOST} elements"))),
        false => Ok(()),
    }
}

/// Reads elements of BYTES: each is its length in four bytes, then its bytes.
fn texts(mut raw: &[u8], tensor: &str) -> Result<Elements, ApiError> {
    let mut values = Vec::new();
    while !raw.is_empty() {
        room(values.len() + 1, tensor)?;
        let taken = raw.split_first_chunk::<4>().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        let (text, rest) =
            taken.ok_or_else(|| wrong(tensor, "has raw data that ends within an element"))?;
        values.push(utf8_value(text, tensor)?);
        raw = rest;
    }
    Ok(Elements(values))
}

/// Returns one element of BYTES.
pub(super) fn utf8_value(bytes: &[u8], tensor: &str) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|_| wrong(tensor, "must be UTF-8"))?;
    Ok(Value::from(text))
}

fn unsigned(bytes: &[u8]) -> u64 {
    let shift = |value, (place, byte): (usize, &u8)| value | u64::from(*byte) << (8 * place);
    bytes.iter().enumerate().fold(0, shift)
}

fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len();
    (unsigned(bytes) << unused).cast_signed() >> unused
}

/// Returns a float with its shortest decimal form: 0.1 as `f32` is not 0.1 as `f64`.
fn float(value: f64) -> Value {
    let short = (value as f32).to_string().parse::<f64>();
    let exact = f64::from(value as f32) == value;
    let value = short.ok().filter(|_| exact).unwrap_or(value);
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut all = Vec::new();
        from.deserialize_seq(Nested(&mut all))?;
        Ok(Self(all))
    }
}

/// Appends the scalars of a list and its nested lists.
struct Nested<'a>(&'a mut Vec<Value>);

impl<'de> Visitor<'de> for Nested<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings, numbers or booleans, or of such lists")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Entry(self.0))?.is_some() {}
        Ok(())
    }
}

struct Entry<'a>(&'a mut Vec<Value>);

impl Entry<'_> {
    fn put<E: serde::de::Error>(self, value: Value) -> Result<(), E> {
        check_room(self.0.len(), MOST)?;
        self.0.push(value);
        Ok(())
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for Entry<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entry<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number, a boolean or a list of them")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.put(Value::from(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.put(Value::from(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.put(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.put(Value::from(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.put(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        Nested(self.0).visit_seq(list)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(datatype: &str, raw: &[u8]) -> Value {
        let datatype = Datatype::parse(datatype, "t").unwrap();
        Value::Array(datatype.read(raw, "t").unwrap().0)
    }

    #[test]
    fn raw_data_is_little_endian() {
        assert_eq!(read("BOOL", &[0, 1]), json!([false, true]));
        assert_eq!(read("UINT16", &[1, 2]), json!([513]));
        assert_eq!(read("INT8", &[255]), json!([-1]));
        assert_eq!(read("INT64", &(-5_i64).to_le_bytes()), json!([-5]));
        assert_eq!(read("UINT64", &u64::MAX.to_le_bytes()), json!([u64::MAX]));
        assert_eq!(read("FP32", &0.1_f32.to_le_bytes()), json!([0.1]));
        assert_eq!(read("FP64", &0.1_f64.to_le_bytes()), json!([0.1]));
        let texts = Values::Text("aé".into()).raw();
        assert_eq!(read("BYTES", &texts), json!(["aé"]));
        assert_eq!(read("BYTES", &[]), json!([]));
        assert_eq!(read("FP32", &f32::NAN.to_le_bytes()), json!([null]));
    }

    #[test]
    fn broken_tensors_are_named() {
        let message = |datatype: &str, raw: &[u8]| {
            let datatype = Datatype::parse(datatype, "t")?;
            datatype.read(raw, "t").map(|_| ())
        };
        for (datatype, raw) in [
            ("FP16", &[][..]),
            ("INT32", &[1, 2]),
            ("BYTES", &[9, 0, 0, 0, 1]),
            ("BYTES", &[1, 0, 0]),
            ("BYTES", &[1, 0, 0, 0, 255]),
        ] {
            let error = message(datatype, raw).unwrap_err();
            assert!(error.message.contains("`t`"), "{error:?}");
        }
        let one = || Elements(vec![json!(1)]);
        assert!(Tensor::new("t".into(), &[1, 1], one()).is_ok());
        for shape in [&[2][..], &[-1], &[i64::MAX, i64::MAX], &[0]] {
            assert!(Tensor::new("t".into(), shape, one()).is_err(), "{shape:?}");
        }
        assert!(Datatype::Signed(4).check(&one(), "t").is_ok());
        assert!(Datatype::Bytes.check(&one(), "t").is_err());
    }

    #[test]
    fn nested_lists_are_flattened() {
        let read = |text: &str| serde_json::from_str::<Elements>(text);
        assert_eq!(
            Value::Array(read(r#"[[1, "a"], [true, [-2.5]]]"#).unwrap().0),
            json!([1, "a", true, -2.5])
        );
        assert!(read("[{}]").is_err());
        assert!(read("[null]").is_err());
        assert!(read("1").is_err());
    }
}
