//! Panics on purpose are silent; others are remembered, because the engine recovers from them.

use std::{cell::Cell, panic, sync::Once};

use penstock_request::panic_message;

/// The message of a panic that a test causes.
pub(crate) const ON_PURPOSE: &str = "on purpose";

thread_local! {
    static UNEXPECTED: Cell<u64> = const { Cell::new(0) };
}

/// Counts this process's panics from now on, by thread.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if panic_message(panic.payload()) == ON_PURPOSE {
                return;
            }
            UNEXPECTED.set(UNEXPECTED.get() + 1);
            report(panic);
        }));
    });
}

/// Returns this thread's unexpected panics since the last call.
pub(crate) fn unexpected() -> u64 {
    UNEXPECTED.replace(0)
}
