//! The checked-in code is what the protocol file says.

use std::fs;

use penstock_proto_codegen::{MADE, generate, root};

#[test]
fn the_checked_in_code_is_up_to_date() {
    let out = std::env::temp_dir().join(format!("penstock-drift-{}", std::process::id()));
    generate(&out).expect("the protocol compiles");
    for name in MADE {
        let fresh = fs::read_to_string(out.join(name)).expect("the code was written");
        let kept = fs::read_to_string(root().join("router/src/generated").join(name));
        assert!(
            fresh == kept.expect("the code is checked in"),
            "{name}: run `make proto`"
        );
    }
    fs::remove_dir_all(&out).expect("the folder is ours");
}
