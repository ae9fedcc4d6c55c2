//! The names that requests may give the model.

use penstock_request::error::{ApiError, ErrorKind, Excerpt};

use super::App;

/// Names that always refer to the served model. `huggingface_hub` sends `dummy` if it has a URL and
/// no model.
const ALIASES: [&str; 3] = ["penstock", "tgi", "dummy"];

/// Fails unless `model` is a name of the served model.
pub(super) fn check_model(app: &App, model: Option<&str>) -> Result<(), ApiError> {
    let mut served = app.config.served_names().chain(ALIASES);
    match model {
        Some(name) if !served.any(|served| served == name) => {
            let names: Vec<&str> = app.config.served_names().collect();
            let message = format!(
                "The model `{}` does not exist; `{}` {} served here",
                Excerpt::new(name),
                names.join("`, `"),
                if names.len() == 1 { "is" } else { "are" }
            );
            let error = ApiError::new(ErrorKind::ModelNotFound, message);
            Err(ApiError {
                param: Some("model".into()),
                ..error
            })
        }
        _ => Ok(()),
    }
}
