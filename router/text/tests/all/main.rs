//! All tests of the text layer in one program, which is linked once.

mod byte_tokenizer;
mod detected_formats;
mod detokenize;
mod family_formats;
mod marked_formats;
mod minimax_formats;
mod parsed;
mod tool_call_grammar;
mod tool_formats;
mod written_calls;
