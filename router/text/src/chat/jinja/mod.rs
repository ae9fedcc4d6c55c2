//! Jinja2 as `transformers` configures it: the sandbox, with trimmed blocks. minijinja parses and
//! runs templates; this module implements the operators, filters, tests and methods that differ
//! from Python's. The source is rewritten so that operators become this module's filters (see
//! `expressions.rs`).

mod args;
mod cycler;
mod expressions;
mod filters_list;
mod filters_other;
mod filters_text;
mod format;
mod jinja_tests;
mod json;
mod lookups;
mod methods;
mod names;
mod numbers;
mod ops;
mod postfix;
mod predicates;
mod printf;
mod python_types;
mod source;
mod statements;
mod strings;
mod strings_parts;
mod tag_parser;
mod text;
mod tokens;
mod wrap;

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use self::args::{Args, count};
pub(super) use self::json::from_json;
pub(super) use self::names::TemplateNames;
use self::python_types::{Range, py_error};

type Function = fn(Args) -> Result<Value, Error>;
type Filter = fn(&mut State<'_, '_>, Value, Args) -> Result<Value, Error>;

/// All of Jinja's filters except `urlize`.
const FILTERS: [(&str, Filter); 53] = [
    ("abs", filters_other::abs),
    ("attr", filters_other::attr),
    ("batch", filters_list::batch),
    ("capitalize", filters_text::capitalize),
    ("center", filters_text::center),
    ("count", filters_list::length),
    ("d", filters_other::default),
    ("default", filters_other::default),
    ("dictsort", filters_list::dict_sort),
    ("e", filters_text::escape),
    ("escape", filters_text::escape),
    ("filesizeformat", filters_text::file_size),
    ("first", filters_list::first),
    ("float", filters_other::float),
    ("forceescape", filters_text::force_escape),
    ("format", filters_text::format),
    ("groupby", filters_list::group_by),
    ("indent", filters_text::indent),
    ("int", filters_other::int),
    ("items", filters_list::items),
    ("join", filters_list::join),
    ("last", filters_list::last),
    ("length", filters_list::length),
    ("list", filters_list::list),
    ("lower", filters_text::lower),
    ("map", filters_list::map),
    ("max", filters_list::max),
    ("min", filters_list::min),
    ("pprint", filters_other::pprint),
    ("random", filters_list::random),
    ("reject", filters_list::reject),
    ("rejectattr", filters_list::reject_attr),
    ("replace", filters_text::replace),
    ("reverse", filters_list::reverse),
    ("round", filters_other::round),
    ("safe", filters_text::safe),
    ("select", filters_list::select),
    ("selectattr", filters_list::select_attr),
    ("slice", filters_list::slice),
    ("sort", filters_list::sort),
    ("string", filters_text::string),
    ("striptags", filters_text::strip_tags),
    ("sum", filters_list::sum),
    ("title", filters_text::title),
    ("tojson", json::to_json),
    ("trim", filters_text::trim),
    ("truncate", filters_text::truncate),
    ("unique", filters_list::unique),
    ("upper", filters_text::upper),
    ("urlencode", filters_text::urlencode),
    ("wordcount", filters_text::wordcount),
    ("wordwrap", wrap::wrap),
    ("xmlattr", filters_text::xml_attributes),
];

/// Returns an environment that renders as `transformers` does, and the rewritten source.
pub(super) fn environment(
    source: &str,
) -> Result<(Environment<'static>, String, TemplateNames), Error> {
    let (source, names) = source::rewrite(source)?;
    let mut environment = Environment::new();
    let syntax = minijinja::syntax::SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| {
        let written = match value.as_str() {
            Some(text) if value.kind() == ValueKind::String => out.write_str(text),
            _ => out.write_str(&text::to_str(value)),
        };
        written.map_err(Error::from)
    });
    for (name, filter) in FILTERS {
        let applied = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let mut args = Args::new(&args.into_values());
            let value = args.take_first();
            filter(state, value, args)
        };
        environment.add_filter(name, applied);
    }
    ops::install(&mut environment);
    jinja_tests::install(&mut environment);
    environment.add_function("range", range);
    let functions: [(&'static str, Function); 3] = [
        ("cycler", cycler::cycler),
        ("dict", filters_list::new_dict),
        ("joiner", cycler::joiner),
    ];
    let namespace = environment.globals().find(|(name, _)| *name == "namespace");
    let namespace = namespace.map(|(_, value)| value).unwrap_or_default();
    environment.add_function(
        "namespace",
        move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let entries = filters_list::new_dict(Args::new(&args.into_values()))?;
            namespace.call(state, &[entries])
        },
    );
    for (name, function) in functions {
        environment.add_function(name, move |args: Rest<ValueOrKwargs>| {
            function(Args::new(&args.into_values()))
        });
    }
    Ok((environment, source, names))
}

fn range(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [start, stop, step] = Args::new(&args.into_values()).bind("range", ["", "", ""])?;
    let first =
        start.ok_or_else(|| py_error("TypeError", "range expected at least 1 argument, got 0"))?;
    let first = count(Some(&first), 0)?;
    match stop {
        None => Range::new_value(0, first, 1),
        Some(stop) => Range::new_value(first, count(Some(&stop), 0)?, count(step.as_ref(), 1)?),
    }
}
