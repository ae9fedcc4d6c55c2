//! `penstock watermark-detect`: detects a watermark in a text.

use std::fs;
use std::io::Read as _;

use penstock_request::sampling_params::Watermark;
use penstock_text::ModelText;
use penstock_text::tokenize::{SpecialTokens, encode};
use penstock_text::watermark::{Score, score};

use crate::cli::WatermarkArgs;
use crate::error::{Failure, Outcome};
use crate::hub::ModelSource;
use crate::interpreter::Interpreter;
use crate::terminal::print;

/// Reads the text and prints the result as one JSON object.
///
/// # Errors
/// If the file or the model's tokenizer cannot be read.
pub fn detect(args: &WatermarkArgs, host: Option<&Interpreter>) -> Outcome<()> {
    let source = ModelSource::parse(args.model.as_deref(), args.revision.as_deref())?;
    let directory = source.fetch(|| Interpreter::find(args.python.as_deref(), host), None)?;
    let model = ModelText::load(&directory).map_err(|e| Failure::runtime(e.to_string()))?;
    let text = read(args)?;
    let ids = encode(&model.tokenizer, &text, SpecialTokens::AsIs);
    let ids = ids.map_err(|error| Failure::runtime(error.message))?;
    let mark = Watermark {
        gamma: args.mark.watermark_gamma,
        key: args.mark.watermark_key,
        ..Watermark::default()
    };
    let Score { pairs, green, z, p } = score(&ids, &mark);
    print(&format!(
        "{{\"tokens\": {}, \"pairs\": {pairs}, \"green\": {green}, \"z\": {z:.3}, \"p\": {p:e}}}\n",
        ids.len()
    ))
}

fn read(args: &WatermarkArgs) -> Outcome<String> {
    let text = if args.file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(&args.file)
    };
    let name = args.file.display();
    text.map_err(|error| Failure::usage(format!("{name} cannot be read as UTF-8 text: {error}")))
}
