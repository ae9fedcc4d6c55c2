//! From a command line to a plan: precedence of sources, defaults by device, and every refusal.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

use std::ffi::OsString;
use std::io::Write;

use penstock::cli::{Command, EngineArgs};
use penstock::error::{Failure, FailureKind};
use penstock::explain::explain;
use penstock::hardware::Hardware;
use penstock::model::{Experts, ModelFacts};
use penstock::quantize::{Quantize, StoredQuantization};
use penstock::resolve::{Plan, resolve, resolve_http, resolve_life};
use penstock::settings::{Settings, SettingsError, Source, Variables, read, read_engine};
use penstock::values::{ByteSize, Device, Dtype, KvDtype, ModelBackend};
use penstock::weight_files::StoredWeights;
use penstock_request::GenerationDefaults;
use serde_json::{Value, json};

#[path = "resolve/states.rs"]
mod states;

const GIB: u64 = 1 << 30;

fn model() -> ModelFacts {
    ModelFacts {
        directory: "/models/tiny".into(),
        family: "LlamaForCausalLM".into(),
        layers: 4,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        full: None,
        latent: false,
        index: 0,
        experts: None,
        states: None,
        max_tokens: 2048,
        extends: false,
        sliding: false,
        dtype: Some(Dtype::Bfloat16),
        weights: StoredWeights {
            floats: 10 << 20,
            linear: 8 << 20,
            other_bytes: 0,
        },
        quantization: None,
    }
}

fn host(cuda_devices: u32) -> Hardware {
    Hardware {
        cuda_devices,
        cores: 8,
        free_memory: 32 * GIB,
    }
}

fn settings(flags: &[&str], variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let argv: Vec<OsString> = ["penstock", "serve"]
        .iter()
        .chain(flags)
        .map(|word| OsString::from(*word))
        .collect();
    let variables = variables
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    read(&argv, &variables)
}

fn engine(settings: &Settings) -> &EngineArgs {
    match &settings.cli.command {
        Command::Serve(args) => &args.engine,
        other => panic!("not serve: {other:?}"),
    }
}

fn plan_on(hardware: &Hardware, flags: &[&str]) -> Result<Plan, Failure> {
    let settings = settings(flags, &[]).expect("well-formed");
    resolve(engine(&settings), &settings.sources, &model(), hardware)
}

fn refusal(hardware: &Hardware, flags: &[&str]) -> String {
    let failure = plan_on(hardware, flags).expect_err("must be refused");
    assert_eq!(failure.kind, FailureKind::Runtime);
    failure.message
}

fn file(text: &str) -> (tempfile::NamedTempFile, String) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    (file, path)
}

fn message(stop: SettingsError) -> String {
    match stop {
        SettingsError::Parser(error) => error.to_string(),
        SettingsError::Failure(failure) => failure.message,
    }
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let (_keep, path) = file("tp = 2\nmax-slots = 5\nmax-len = 77\n");
    let variables = [
        ("PENSTOCK_TP", "3"),
        ("PENSTOCK_MAX_SLOTS", "6"),
        ("HOME", "/h"),
    ];
    let settings = settings(&["--config", &path, "--tp", "4"], &variables).unwrap();
    let args = engine(&settings);
    assert_eq!(
        (args.tp, args.max_slots, args.max_len),
        (Some(4), Some(6), Some(77))
    );
    let source = |name| settings.sources.get(name);
    assert_eq!(source("tp"), Source::Flag);
    assert_eq!(source("max-slots"), Source::Variable);
    assert_eq!(source("max-len"), Source::File);
    assert_eq!(source("block-tokens"), Source::Default);
}

#[test]
fn every_kind_of_setting_can_come_from_the_file_or_the_environment() {
    let text = "kv-memory = \"2GiB\"\nno-prefix-cache = true\nworker = [\"unix:/a\", \"unix:/b\"]\n\
                memory-fraction = 0.25\nhost = \"0.0.0.0\"\n";
    let (_keep, path) = file(text);
    let from_file = settings(&["--config", &path], &[]).unwrap();
    let variables = [
        ("PENSTOCK_KV_MEMORY", "2GiB"),
        ("PENSTOCK_NO_PREFIX_CACHE", "1"),
        ("PENSTOCK_WORKER", "unix:/a,unix:/b"),
        ("PENSTOCK_MEMORY_FRACTION", "0.25"),
    ];
    let from_variables = settings(&[], &variables).unwrap();
    for settings in [from_file, from_variables] {
        let args = engine(&settings);
        assert_eq!(args.kv_memory, Some(ByteSize(2 * GIB)));
        assert!(args.no_prefix_cache);
        assert_eq!(args.worker, ["unix:/a", "unix:/b"]);
        assert_eq!(args.memory_fraction, Some(0.25));
    }
}

#[test]
fn last_of_repeated_flags_wins() {
    let settings = settings(&["--tp", "2", "--tp", "4"], &[]).unwrap();
    assert_eq!(engine(&settings).tp, Some(4));
    let workers = ["--worker", "unix:/a", "--worker", "unix:/b"];
    assert_eq!(plan_on(&host(0), &workers).unwrap().tp.value, 2);
}

#[test]
fn unknown_settings_are_refused_in_flags_file_and_environment() {
    let (_keep, path) = file("max-lne = 100\n");
    let said = message(settings(&["--config", &path], &[]).unwrap_err());
    assert!(said.contains("\"max-lne\" is not a setting"), "{said}");
    let said = message(settings(&[], &[("PENSTOCK_MAX_LNE", "1")]).unwrap_err());
    assert!(said.contains("PENSTOCK_MAX_LNE"), "{said}");
    let said = message(settings(&["--max-lne", "1"], &[]).unwrap_err());
    assert!(said.contains("--max-len"), "should suggest: {said}");
    let said = message(settings(&["--config", "/nowhere.toml"], &[]).unwrap_err());
    assert!(said.contains("/nowhere.toml"), "{said}");
}

#[test]
fn out_of_range_errors_name_the_flag_and_the_value() {
    for (flag, value) in [
        ("--tp", "0"),
        ("--max-len", "1"),
        ("--memory-fraction", "1.5"),
        ("--memory-fraction", "NaN"),
        ("--kv-memory", "lots"),
        ("--port", "70000"),
        ("--device", "tpu"),
        ("--latency-target", "0"),
        ("--body-memory", "1MiB"),
        ("--tool-parser", "xml"),
        ("--reasoning-parser", "aloud"),
        ("--system-prompt", ""),
    ] {
        let said = message(settings(&[flag, value], &[]).unwrap_err());
        assert!(said.contains(flag) && said.contains(value), "{said}");
    }
}

#[test]
fn defaults_follow_the_device() {
    let cpu = plan_on(&host(0), &[]).unwrap();
    assert_eq!(
        (cpu.device.value, cpu.dtype.value),
        (Device::Cpu, Dtype::Float32)
    );
    assert_eq!((cpu.limits.max_slots.value, cpu.threads.value), (32, 8));
    let cuda = plan_on(&host(2), &["--tp", "2"]).unwrap();
    assert_eq!(
        (cuda.device.value, cuda.dtype.value),
        (Device::Cuda, Dtype::Bfloat16)
    );
    assert_eq!((cuda.limits.max_slots.value, cuda.threads.value), (0, 0));
    assert_eq!(cuda.memory.kv_bytes.value, None, "the worker measures");
}

#[test]
fn cpu_kv_pool_holds_all_slots_or_fits_free_memory() {
    let token = 2 * 4 * 4 * 64 * 4;
    let plan = plan_on(&host(0), &[]).unwrap();
    assert_eq!(plan.memory.kv_bytes.value, Some(32 * 2048 * token));
    let small = Hardware {
        free_memory: 256 << 20,
        ..host(0)
    };
    let plan = plan_on(&small, &[]).unwrap();
    assert_eq!(
        plan.memory.kv_bytes.value,
        Some((128 << 20) - 2 * (20 << 20))
    );
}

#[test]
fn blocks_count_the_bytes_of_their_kv_dtype() {
    let block = |flags: &[&str]| plan_on(&host(1), flags).unwrap().memory.block_bytes;
    let heads = 2 * 4 * 4 * 16; // key and value, layers, heads, tokens
    assert_eq!(block(&[]), heads * 64 * 2);
    for (kv_dtype, row) in [
        ("auto", 128),
        ("fp8_e4m3", 64),
        ("fp8_e5m2", 64),
        ("int8", 68),
        ("int4", 36),
    ] {
        assert_eq!(block(&["--kv-dtype", kv_dtype]), heads * row, "{kv_dtype}");
    }
    let on_two = ["--kv-dtype", "int4", "--tp", "2"];
    let plan = plan_on(&host(2), &on_two).unwrap();
    assert_eq!(plan.memory.block_bytes, heads / 2 * 36);
    let settings = settings(&on_two, &[]).unwrap();
    let Command::Serve(args) = settings.cli.command else {
        panic!("not serve");
    };
    let bounds = resolve_http(&args.http, &settings.sources, 2);
    let config = [
        ("temperature".into(), 0.5.into()),
        ("top_k".into(), 20.into()),
    ];
    let defaults = GenerationDefaults::from_config(&config.into_iter().collect()).unwrap();
    let life = resolve_life(&args.life, &settings.sources);
    let page = explain(&plan, &bounds, &life, &[], &defaults);
    assert!(page.contains("kv-dtype           int4"), "{page}");
    let formula = "2 (key, value) x 4 layers x 2 heads x (64 elements x 4 bits + 4 bytes of scale \
                   and zero) x 16 tokens";
    assert!(page.contains(formula), "{page}");
    assert!(
        page.contains("defaults           temperature 0.5, top_k 20"),
        "{page}"
    );
}

#[test]
fn restarts_are_explained() {
    let page = |flags: &[&str]| {
        let plan = plan_on(&host(1), flags).unwrap();
        let Settings { cli, sources } = settings(flags, &[]).unwrap();
        let Command::Serve(args) = cli.command else {
            panic!("not serve")
        };
        let bounds = resolve_http(&args.http, &sources, 1);
        let life = resolve_life(&args.life, &sources);
        explain(&plan, &bounds, &life, &[], &GenerationDefaults::default())
    };
    let (quiet, busy) = (
        page(&[]),
        page(&[
            "--standby",
            "--exit-after-losses",
            "3",
            "--max-restart-wait",
            "5m",
        ]),
    );
    for (line, other) in [
        (
            "standby            no             default",
            "yes            typed",
        ),
        (
            "exit-after-losses  never          default",
            "3              typed",
        ),
        (
            "max-restart-wait   60s            default",
            "300s           typed",
        ),
        (
            "keep-workers       0s             default",
            "0s             default",
        ),
    ] {
        assert!(quiet.contains(line), "{quiet}");
        let (name, _) = line.split_at(19);
        assert!(busy.contains(&format!("{name}{other}")), "{busy}");
    }
}

#[test]
fn latents_have_one_row_per_token_on_every_rank() {
    let model = ModelFacts {
        kv_heads: 1,
        head_dim: 576,
        latent: true,
        ..model()
    };
    let plan = |flags: &[&str]| {
        let settings = settings(flags, &[]).expect("well-formed");
        resolve(engine(&settings), &settings.sources, &model, &host(8))
            .map(|plan| (plan, settings))
            .map_err(|failure| failure.message)
    };
    for ranks in ["1", "8"] {
        let (plan, settings) = plan(&["--tp", ranks]).unwrap();
        assert_eq!(plan.memory.block_bytes, 4 * 576 * 2 * 16);
        let Command::Serve(args) = settings.cli.command else {
            panic!("not serve");
        };
        let bounds = resolve_http(&args.http, &settings.sources, 2);
        let life = resolve_life(&args.life, &settings.sources);
        let page = explain(&plan, &bounds, &life, &[], &GenerationDefaults::default());
        assert!(page.contains("latents of 576 elements per token"), "{page}");
        let formula = "4 layers x 576 elements x 16 bits x 16 tokens, on every worker";
        assert!(page.contains(formula), "{page}");
    }
    let error = plan(&["--tp", "3"]).unwrap_err();
    assert!(
        error.contains("(num_attention_heads 8): use one of 1, 2, 4, 8."),
        "{error}"
    );
    let error = plan(&["--kv-dtype", "int8"]).unwrap_err();
    assert!(
        error.contains("--kv-dtype int8 is not supported"),
        "{error}"
    );
}

#[test]
fn kv_dtypes_have_the_names_of_tgi_too() {
    let kv_dtype = |name| {
        plan_on(&host(1), &["--kv-dtype", name])
            .unwrap()
            .memory
            .kv_dtype
    };
    assert_eq!(kv_dtype("fp8_e4m3fn").value, KvDtype::Fp8E4m3);
    let said = settings(&["--kv-dtype", "int3"], &[]).unwrap_err();
    assert!(format!("{said:?}").contains("int3"));
}

#[test]
fn ranks_must_divide_the_heads() {
    let said = refusal(&host(0), &["--tp", "3"]);
    assert!(
        said.contains("--tp 3") && said.contains("use one of 1, 2, 4, 8."),
        "{said}"
    );
    let block_bytes = |tp| {
        let plan = plan_on(&host(0), &["--tp", tp]).unwrap();
        plan.memory.block_bytes
    };
    assert_eq!(block_bytes("1"), 4 * block_bytes("4"));
    // Each of the four KV heads is on two ranks.
    assert_eq!(block_bytes("8"), block_bytes("4"));
    let said = refusal(&host(1), &["--tp", "2"]);
    assert!(said.contains("this host has 1"), "{said}");
}

#[test]
fn expert_parallel_ranks_must_divide_the_experts() {
    let plan = |flags: &[&str], experts| {
        let settings = settings(flags, &[]).unwrap();
        let model = ModelFacts { experts, ..model() };
        resolve(engine(&settings), &settings.sources, &model, &host(0))
    };
    let experts = |count| {
        Some(Experts {
            count,
            per_token: 2,
        })
    };
    let dense = plan(&["--ep"], None).unwrap_err().to_string();
    assert!(dense.contains("LlamaForCausalLM has none"), "{dense}");
    let odd = plan(&["--ep", "--tp", "2"], experts(7)).unwrap_err();
    let odd = odd.to_string();
    assert!(odd.contains("2 workers cannot share 7 experts"), "{odd}");
    assert!(!plan(&["--tp", "2"], experts(7)).unwrap().ep.value);
    let plan = plan(&["--ep", "--tp", "2"], experts(8)).unwrap();
    assert!(plan.ep.value);
    let Settings { cli, sources } = settings(&[], &[]).unwrap();
    let Command::Serve(arguments) = cli.command else {
        panic!("not serve")
    };
    let bounds = resolve_http(&arguments.http, &sources, 2);
    let life = resolve_life(&arguments.life, &sources);
    let page = explain(&plan, &bounds, &life, &[], &GenerationDefaults::default());
    assert!(page.contains("2 of each layer's for a token"), "{page}");
}

#[test]
fn transformers_runs_on_several_devices_and_in_any_format() {
    for more in [["--quantize", "int4"], ["--tp", "2"]] {
        let arguments = [["--model-backend", "transformers"], more].concat();
        assert_eq!(
            plan_on(&host(2), &arguments).unwrap().model_backend.value,
            ModelBackend::Transformers
        );
    }
}

#[test]
fn the_pool_must_hold_one_sequence() {
    let said = refusal(&host(0), &["--kv-memory", "1MiB"]);
    assert!(
        said.contains("--kv-memory of 1 MiB holds 128 tokens"),
        "{said}"
    );
    assert!(
        said.contains("needs 16 MiB") && said.contains("--max-len"),
        "{said}"
    );
    assert!(plan_on(&host(0), &["--kv-memory", "1MiB", "--max-len", "128"]).is_ok());
    // With sliding windows a sequence needs less: the worker decides.
    let settings = settings(&["--kv-memory", "1MiB"], &[]).unwrap();
    let sliding = ModelFacts {
        sliding: true,
        ..model()
    };
    assert!(resolve(engine(&settings), &settings.sources, &sliding, &host(0)).is_ok());
    let none = Hardware {
        free_memory: 1 << 20,
        ..host(0)
    };
    assert!(refusal(&none, &[]).contains("free host memory"));
}

#[test]
fn sequences_may_be_longer_where_the_base_of_rope_grows() {
    let extends = ModelFacts {
        extends: true,
        ..model()
    };
    for (length, allowed) in [("4096", true), ("1048577", false)] {
        let settings = settings(&["--max-len", length], &[]).unwrap();
        let found = resolve(engine(&settings), &settings.sources, &extends, &host(0));
        assert_eq!(found.is_ok(), allowed);
    }
}

#[test]
fn contradictory_settings_are_refused() {
    assert!(refusal(&host(0), &["--device", "cuda"]).contains("no CUDA device"));
    assert!(refusal(&host(0), &["--max-len", "4096"]).contains("2048"));
    let float64 = ["--device", "cuda", "--dtype", "float64"];
    assert!(refusal(&host(1), &float64).contains("float64"));
    let workers = ["--worker", "unix:/a", "--worker", "unix:/b"];
    assert_eq!(plan_on(&host(0), &workers).unwrap().tp.value, 2);
    let three = ["--worker", "unix:/a", "--tp", "2"];
    assert!(refusal(&host(0), &three).contains("does not match 1 --worker"));
}

#[test]
fn read_engine_takes_the_same_settings() {
    let flags = |text: &[&str]| {
        text.iter()
            .map(|flag| (*flag).to_owned())
            .collect::<Vec<_>>()
    };
    let variables = Variables::from([("PENSTOCK_MAX_SLOTS".into(), "6".into())]);
    let (typed, sources) = read_engine(flags(&["--tp=2"]), &variables).unwrap();
    assert_eq!((typed.tp, typed.max_slots), (Some(2), Some(6)));
    assert_eq!(sources.get("tp"), Source::Flag);
    for (flag, word) in [
        ("--port=1", "--port"),
        ("--tp=zero", "zero"),
        ("--max-lne=9", "--max-len"),
    ] {
        let failure = read_engine(flags(&[flag]), &Variables::new()).unwrap_err();
        assert!(failure.message.contains(word), "{failure}");
        assert!(!failure.message.contains("Usage"), "{failure}");
    }
}

#[test]
fn a_model_may_have_several_names() {
    let names = |flags: &[&str], variables: &[(&str, &str)]| {
        let settings = settings(flags, variables).unwrap();
        match settings.cli.command {
            Command::Serve(args) => args.http.served_model_name,
            other => panic!("{other:?}"),
        }
    };
    let flag = "--served-model-name";
    assert!(names(&[], &[]).is_empty());
    assert_eq!(names(&[flag, "a", flag, "b"], &[]), ["a", "b"]);
    assert_eq!(names(&[flag, "a", "b", "--port", "0"], &[]), ["a", "b"]);
    let variable = [("PENSTOCK_SERVED_MODEL_NAME", "c,d")];
    assert_eq!(names(&[], &variable), ["c", "d"]);
    assert_eq!(names(&[flag, "a"], &variable), ["a"]);
    assert!(settings(&[flag, ""], &[]).is_err());
}

#[test]
fn response_store_size_is_configurable() {
    let store = |flags: &[&str]| {
        let settings = settings(flags, &[]).unwrap();
        match settings.cli.command {
            Command::Serve(args) => resolve_http(&args.http, &settings.sources, 1).responses,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(store(&[]).value, ByteSize(64 << 20));
    assert_eq!(store(&["--response-store", "0"]).value, ByteSize(0));
    let typed = store(&["--response-store", "1GiB"]);
    assert_eq!((typed.value, typed.why.as_str()), (ByteSize(GIB), "typed"));
    assert!(settings(&["--response-store", "-1"], &[]).is_err());
}

#[test]
fn a_typed_weight_format_lowers_the_memory_of_weights_on_cuda() {
    let plain = plan_on(&host(1), &[]).unwrap();
    let int4 = plan_on(&host(1), &["--quantize", "int4"]).unwrap();
    assert_eq!(plain.quantize.value, None);
    assert_eq!(plain.quantize.why, "the checkpoint is not quantized");
    assert_eq!(int4.quantize.value, Some(Quantize::Int4));
    assert_eq!(plain.memory.weight_bytes, 20 << 20);
    // 2 Mi floats stay; 8 Mi have 4 bits, and a scale and a zero point per 128.
    let scales = (8 << 20) / 128 * 4;
    assert_eq!(int4.memory.weight_bytes, (4 << 20) + (4 << 20) + scales);
}

#[test]
fn a_weight_format_that_contradicts_the_checkpoint_is_refused() {
    let refusal = |stored: Option<Value>, format: &str| {
        let mut model = model();
        let config = stored.map(|config| json!({ "quantization_config": config }));
        model.quantization = config.and_then(|config| StoredQuantization::of(&config));
        let settings = settings(&["--quantize", format], &[]).unwrap();
        let plan = resolve(engine(&settings), &settings.sources, &model, &host(1));
        plan.err().map(|failure| failure.message)
    };
    let gptq = || Some(json!({"quant_method": "gptq", "bits": 4}));
    assert_eq!(refusal(gptq(), "gptq"), None);
    let contradiction = refusal(gptq(), "int4").unwrap();
    assert!(contradiction.contains("--quantize int4 contradicts the checkpoint"));
    assert!(contradiction.contains("quant_method \"gptq\""));
    let naive = json!({"quant_method": "compressed-tensors", "format": "naive-quantized",
        "config_groups": {"a": {"weights": {"type": "float", "num_bits": 8}}}});
    assert_eq!(refusal(Some(naive), "fp8"), None);
    assert_eq!(refusal(None, "int4"), None);
    let floats = refusal(None, "awq").unwrap();
    assert!(floats.contains("--quantize awq needs a checkpoint in that format"));
}

#[test]
fn a_weight_format_by_another_librarys_name_has_a_tip() {
    for (name, tip) in [
        ("nf4", "'bitsandbytes-nf4'"),
        ("fp4", "'bitsandbytes-fp4'"),
        ("int8", "'eetq', 'bitsandbytes'"),
        ("gtpq", "'gptq'"),
    ] {
        let refusal = message(settings(&["--quantize", name], &[]).unwrap_err());
        let tips: Vec<&str> = refusal
            .lines()
            .filter(|line| line.contains("tip"))
            .collect();
        assert!(tips.len() == 1 && tips[0].ends_with(tip), "{refusal}");
        assert!(
            refusal.contains("possible values: bitsandbytes, "),
            "{refusal}"
        );
    }
}

#[test]
fn the_kv_dtype_fp8_is_e4m3() {
    let plan = plan_on(&host(1), &["--kv-dtype", "fp8"]).unwrap();
    assert_eq!(plan.memory.kv_dtype.value, KvDtype::Fp8E4m3);
    assert_eq!(plan.memory.kv_dtype.value.name(), "fp8_e4m3");
}
