//! The checked-in code is what the protocol file says.

use std::{fs, path::Path};

use penstock_proto_codegen::{MADE, generate, root};

#[test]
fn the_checked_in_code_is_up_to_date() {
    let out = std::env::temp_dir().join(format!("penstock-drift-{}", std::process::id()));
    generate(&out).expect("the protocol compiles");
    for (name, folder) in MADE {
        let path = Path::new(folder).join(name);
        let fresh = fs::read_to_string(out.join(&path)).expect("the code was written");
        let kept = fs::read_to_string(root().join(path));
        assert!(
            fresh == kept.expect("the code is checked in"),
            "{name}: run `make proto`"
        );
    }
    fs::remove_dir_all(&out).expect("the folder is ours");
}
