//! All tests of the HTTP layer in one program, which is linked once; `fuzz` counts panics and is
//! another one.

#[path = "../../../text/tests/all/byte_tokenizer.rs"]
mod byte_tokenizer;

mod access;
mod anthropic;
mod bad_input;
mod beam;
mod body_limits;
mod chat_fields;
mod choices;
mod compressed;
mod deadlines;
mod error_types;
mod extra_fields;
mod families;
mod field_limits;
mod functions;
mod generation_defaults;
mod health;
mod infill;
mod kserve;
mod model_names;
mod native;
mod openai;
mod openapi;
mod openapi_bounds;
mod response_server;
mod response_store;
mod responses;
mod responses_input;
mod sampling;
mod scripted;
mod serving;
mod stop_strings;
mod strict_json;
mod tenants;
mod tls;
mod token_ids;
mod tokens;
mod too_long;
mod tools;
mod unicode;
mod unread_bodies;
mod vllm_fields;
