//! Python's types on top of minijinja's values, and the types that minijinja does not have.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// A value's type in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Undefined,
    None,
    Bool,
    Int,
    Float,
    Str,
    Bytes,
    List,
    Tuple,
    Dict,
    /// Iterables without indexing: dict views and generators.
    Iterable,
    /// Functions, macros, namespaces, `loop`.
    Other,
}

pub(super) fn kind(value: &Value) -> Kind {
    match value.kind() {
        ValueKind::Undefined => Kind::Undefined,
        ValueKind::None => Kind::None,
        ValueKind::Bool => Kind::Bool,
        ValueKind::Number if value.is_integer() => Kind::Int,
        ValueKind::Number => Kind::Float,
        ValueKind::String => Kind::Str,
        ValueKind::Bytes => Kind::Bytes,
        ValueKind::Seq | ValueKind::Iterable if value.is_tuple() => Kind::Tuple,
        ValueKind::Seq if value.downcast_object_ref::<GroupTuple>().is_some() => Kind::Tuple,
        ValueKind::Seq | ValueKind::Iterable => Kind::List,
        ValueKind::Map if is_engines_own(value) => Kind::Other,
        ValueKind::Map => Kind::Dict,
        _ if value.downcast_object_ref::<BigInt>().is_some() => Kind::Int,
        _ if value.downcast_object_ref::<DictView>().is_some() => Kind::Iterable,
        _ if value.downcast_object_ref::<PyGenerator>().is_some() => Kind::Iterable,
        _ => Kind::Other,
    }
}

/// Whether the value is a macro, a namespace or `loop`. minijinja treats them as maps; in Python
/// they are no dicts. Their types are private to minijinja, so they are recognised by type name.
fn is_engines_own(value: &Value) -> bool {
    const OWN: [&str; 4] = ["::Namespace", "::Macro", "::Loop", "::Module"];
    value
        .as_object()
        .is_some_and(|object| OWN.iter().any(|own| object.type_name().ends_with(own)))
}

/// Returns Python's name of the value's type, for messages.
pub(super) fn type_name(value: &Value) -> &'static str {
    match kind(value) {
        Kind::Undefined => "Undefined",
        Kind::None => "NoneType",
        Kind::Bool => "bool",
        Kind::Int => "int",
        Kind::Float => "float",
        Kind::Str => "str",
        Kind::Bytes => "bytes",
        Kind::List if value.downcast_object_ref::<Range>().is_some() => "range",
        Kind::List => "list",
        Kind::Tuple => "tuple",
        Kind::Dict => "dict",
        Kind::Iterable => "iterator",
        Kind::Other => "object",
    }
}

/// Returns an error of Python's type `TypeError`, `ValueError`, ...
pub(super) fn py_error(error: &str, message: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{error}: {message}"))
}

pub(super) fn undefined() -> Error {
    Error::new(ErrorKind::UndefinedError, "the value is undefined")
}

/// Returns the items over which Python's `for` iterates.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match kind(value) {
        Kind::None | Kind::Bool | Kind::Int | Kind::Float | Kind::Other => {
            let name = type_name(value);
            Err(py_error(
                "TypeError",
                format!("'{name}' object is not iterable"),
            ))
        }
        _ => Ok(value.try_iter()?.collect()),
    }
}

/// Returns the keys and values of a dict.
pub(super) fn pairs(value: &Value) -> Vec<(Value, Value)> {
    let pairs = value.as_object().and_then(|dict| dict.try_iter_pairs());
    pairs.into_iter().flatten().collect()
}

pub(super) fn dict(pairs: Vec<(Value, Value)>) -> Value {
    Value::from_pairs(pairs)
}

pub(super) fn tuple(items: Vec<Value>) -> Value {
    Value::from(Tuple::from(items))
}

pub(super) fn pair((key, value): (Value, Value)) -> Value {
    tuple(vec![key, value])
}

/// Implements `len(value)`.
pub(super) fn len(value: &Value) -> Result<usize, Error> {
    let counted = match kind(value) {
        Kind::Undefined => Some(0),
        Kind::Str => value.as_str().map(|text| text.chars().count()),
        Kind::Bytes => value.as_bytes().map(<[u8]>::len),
        Kind::List | Kind::Tuple | Kind::Dict => value.len(),
        Kind::Iterable => value.downcast_object_ref::<DictView>().map(DictView::len),
        _ => None,
    };
    counted.ok_or_else(|| {
        let name = type_name(value);
        py_error("TypeError", format!("object of type '{name}' has no len()"))
    })
}

/// An integer beyond minijinja's 128 bits. It can only be printed and compared.
#[derive(Debug)]
pub(super) struct BigInt(pub(super) String);

impl Object for BigInt {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn custom_cmp(
        self: &Arc<Self>,
        other: &minijinja::value::DynObject,
    ) -> Option<std::cmp::Ordering> {
        let other = other.downcast_ref::<Self>()?;
        let key = |text: &str| (!text.starts_with('-'), text.len(), text.to_owned());
        let order = key(&self.0).cmp(&key(&other.0));
        Some(if self.0.starts_with('-') && other.0.starts_with('-') {
            order.reverse()
        } else {
            order
        })
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an integer from its decimal digits.
pub(super) fn integer(digits: &str) -> Value {
    match digits.parse::<i128>() {
        Ok(number) => from_i128(number),
        Err(_) => Value::from_object(BigInt(digits.to_owned())),
    }
}

pub(super) fn from_i128(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

/// The result of a filter such as `map`: always true, without a length, iterable once.
#[derive(Debug)]
pub(super) struct PyGenerator(Mutex<Vec<Value>>);

impl PyGenerator {
    pub(super) fn new_value(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items)))
    }
}

impl Object for PyGenerator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let mut items = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Enumerator::Iter(Box::new(std::mem::take(&mut *items).into_iter()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// The part of a dict that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DictPart {
    Keys,
    Values,
    Items,
}

/// The result of `dict.keys()`, `dict.values()` or `dict.items()`.
#[derive(Debug)]
pub(super) struct DictView {
    pub(super) dict: Value,
    pub(super) part: DictPart,
}

impl DictView {
    pub(super) fn new_value(dict: &Value, part: DictPart) -> Value {
        Value::from_object(Self {
            dict: dict.clone(),
            part,
        })
    }

    fn len(&self) -> usize {
        self.dict.len().unwrap_or(0)
    }

    pub(super) fn name(&self) -> &'static str {
        match self.part {
            DictPart::Keys => "dict_keys",
            DictPart::Values => "dict_values",
            DictPart::Items => "dict_items",
        }
    }

    pub(super) fn list(&self) -> Vec<Value> {
        let pairs = pairs(&self.dict).into_iter();
        match self.part {
            DictPart::Keys => pairs.map(|(key, _)| key).collect(),
            DictPart::Values => pairs.map(|(_, value)| value).collect(),
            DictPart::Items => pairs.map(pair).collect(),
        }
    }
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.list())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.len())
    }
}

/// `range(start, stop, step)`.
#[derive(Debug)]
pub(super) struct Range {
    start: i64,
    stop: i64,
    step: i64,
    len: usize,
}

impl Range {
    /// The maximum length, as in Jinja's sandbox.
    const MOST: usize = 100_000;

    pub(super) fn new_value(start: i64, stop: i64, step: i64) -> Result<Value, Error> {
        if step == 0 {
            return Err(py_error("ValueError", "range() arg 3 must not be zero"));
        }
        let (from, to) = if step > 0 {
            (start, stop)
        } else {
            (stop, start)
        };
        let distance = i128::from(to) - i128::from(from);
        let step_size = i128::from(step).abs();
        let len = (distance.max(0) + step_size - 1) / step_size;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > Self::MOST {
            let most = Self::MOST;
            let message = format!("Range too big. The sandbox blocks ranges larger than {most}.");
            return Err(py_error("OverflowError", message));
        }
        Ok(Value::from_object(Self {
            start,
            stop,
            step,
            len,
        }))
    }

    pub(super) fn text(&self) -> String {
        let Self { start, stop, .. } = self;
        match self.step {
            1 => format!("range({start}, {stop})"),
            step => format!("range({start}, {stop}, {step})"),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.len)?;
        let index = i64::try_from(index).ok()?;
        Some(Value::from(self.start + index * self.step))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }
}

/// A method that is accessed but not called, such as `d.items` in `{% if d.items %}`.
#[derive(Debug)]
pub(super) struct BoundMethod {
    pub(super) value: Value,
    pub(super) method: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.value.call_method(state, &self.method, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = type_name(&self.value);
        write!(f, "<built-in method {} of {name} object>", self.method)
    }
}

/// One group of `groupby`: a pair whose items are also named `grouper` and `list`.
#[derive(Debug)]
pub(super) struct GroupTuple {
    grouper: Value,
    list: Value,
}

impl GroupTuple {
    pub(super) fn new_value(grouper: Value, list: Vec<Value>) -> Value {
        let list = Value::from(list);
        Value::from_object(Self { grouper, list })
    }
}

impl Object for GroupTuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_usize()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}
