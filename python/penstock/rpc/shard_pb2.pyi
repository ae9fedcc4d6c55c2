from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LoadRequest(_message.Message):
    __slots__ = ("protocol_version", "model_path", "device", "dtype", "rank", "world_size", "rendezvous", "max_sequence_tokens", "max_slots", "max_step_tokens", "kv_memory_bytes", "memory_fraction", "block_tokens", "threads", "kv_dtype", "quantize", "expert_parallel", "model_backend", "keep_seconds")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FRACTION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZE_FIELD_NUMBER: _ClassVar[int]
    EXPERT_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_BACKEND_FIELD_NUMBER: _ClassVar[int]
    KEEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model_path: str
    device: str
    dtype: str
    rank: int
    world_size: int
    rendezvous: str
    max_sequence_tokens: int
    max_slots: int
    max_step_tokens: int
    kv_memory_bytes: int
    memory_fraction: float
    block_tokens: int
    threads: int
    kv_dtype: str
    quantize: str
    expert_parallel: bool
    model_backend: str
    keep_seconds: int
    def __init__(self, protocol_version: _Optional[int] = ..., model_path: _Optional[str] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., rendezvous: _Optional[str] = ..., max_sequence_tokens: _Optional[int] = ..., max_slots: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., kv_memory_bytes: _Optional[int] = ..., memory_fraction: _Optional[float] = ..., block_tokens: _Optional[int] = ..., threads: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., quantize: _Optional[str] = ..., expert_parallel: bool = ..., model_backend: _Optional[str] = ..., keep_seconds: _Optional[int] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("progress", "loaded")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    loaded: Loaded
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., loaded: _Optional[_Union[Loaded, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "done", "total")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done: int
    total: int
    def __init__(self, phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("kv_groups", "max_slots", "max_step_tokens", "max_sequence_tokens", "max_tokens_per_run", "vocab_size", "device_name", "memory", "model_backend", "limitations", "step_sizes")
    KV_GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_RUN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MODEL_BACKEND_FIELD_NUMBER: _ClassVar[int]
    LIMITATIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_SIZES_FIELD_NUMBER: _ClassVar[int]
    kv_groups: _containers.RepeatedCompositeFieldContainer[KvGroup]
    max_slots: int
    max_step_tokens: int
    max_sequence_tokens: int
    max_tokens_per_run: int
    vocab_size: int
    device_name: str
    memory: MemoryReport
    model_backend: str
    limitations: _containers.RepeatedScalarFieldContainer[str]
    step_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kv_groups: _Optional[_Iterable[_Union[KvGroup, _Mapping]]] = ..., max_slots: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., max_sequence_tokens: _Optional[int] = ..., max_tokens_per_run: _Optional[int] = ..., vocab_size: _Optional[int] = ..., device_name: _Optional[str] = ..., memory: _Optional[_Union[MemoryReport, _Mapping]] = ..., model_backend: _Optional[str] = ..., limitations: _Optional[_Iterable[str]] = ..., step_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class KvGroup(_message.Message):
    __slots__ = ("block_tokens", "blocks", "block_bytes", "window", "recurrent")
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    RECURRENT_FIELD_NUMBER: _ClassVar[int]
    block_tokens: int
    blocks: int
    block_bytes: int
    window: int
    recurrent: bool
    def __init__(self, block_tokens: _Optional[int] = ..., blocks: _Optional[int] = ..., block_bytes: _Optional[int] = ..., window: _Optional[int] = ..., recurrent: bool = ...) -> None: ...

class MemoryReport(_message.Message):
    __slots__ = ("total", "weights", "activations", "graphs", "slots", "kv")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    total: int
    weights: int
    activations: int
    graphs: int
    slots: int
    kv: int
    def __init__(self, total: _Optional[int] = ..., weights: _Optional[int] = ..., activations: _Optional[int] = ..., graphs: _Optional[int] = ..., slots: _Optional[int] = ..., kv: _Optional[int] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("request_id", "sampling", "grammar")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    sampling: Sampling
    grammar: Grammar
    def __init__(self, request_id: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: RequestError
    def __init__(self, error: _Optional[_Union[RequestError, _Mapping]] = ...) -> None: ...

class RequestError(_message.Message):
    __slots__ = ("kind", "message")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RequestError.Kind]
        KIND_INVALID: _ClassVar[RequestError.Kind]
        KIND_INTERNAL: _ClassVar[RequestError.Kind]
        KIND_UNPREPARED: _ClassVar[RequestError.Kind]
    KIND_UNSPECIFIED: RequestError.Kind
    KIND_INVALID: RequestError.Kind
    KIND_INTERNAL: RequestError.Kind
    KIND_UNPREPARED: RequestError.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: RequestError.Kind
    message: str
    def __init__(self, kind: _Optional[_Union[RequestError.Kind, str]] = ..., message: _Optional[str] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("epoch", "step", "finished", "new", "forks", "copies", "growth", "run_slots", "run_tokens", "steered_slots", "steered_tokens")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    RUN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEERED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    STEERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    finished: _containers.RepeatedScalarFieldContainer[int]
    new: _containers.RepeatedCompositeFieldContainer[NewSequence]
    forks: _containers.RepeatedCompositeFieldContainer[SlotFork]
    copies: _containers.RepeatedCompositeFieldContainer[BlockCopies]
    growth: _containers.RepeatedCompositeFieldContainer[BlockGrowth]
    run_slots: _containers.RepeatedScalarFieldContainer[int]
    run_tokens: _containers.RepeatedScalarFieldContainer[int]
    steered_slots: _containers.RepeatedScalarFieldContainer[int]
    steered_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., finished: _Optional[_Iterable[int]] = ..., new: _Optional[_Iterable[_Union[NewSequence, _Mapping]]] = ..., forks: _Optional[_Iterable[_Union[SlotFork, _Mapping]]] = ..., copies: _Optional[_Iterable[_Union[BlockCopies, _Mapping]]] = ..., growth: _Optional[_Iterable[_Union[BlockGrowth, _Mapping]]] = ..., run_slots: _Optional[_Iterable[int]] = ..., run_tokens: _Optional[_Iterable[int]] = ..., steered_slots: _Optional[_Iterable[int]] = ..., steered_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class NewSequence(_message.Message):
    __slots__ = ("slot", "request_id", "token_ids", "generated", "computed", "tables", "sampling", "grammar")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    slot: int
    request_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    generated: int
    computed: int
    tables: _containers.RepeatedCompositeFieldContainer[BlockTable]
    sampling: Sampling
    grammar: Grammar
    def __init__(self, slot: _Optional[int] = ..., request_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., generated: _Optional[int] = ..., computed: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[BlockTable, _Mapping]]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ...) -> None: ...

class BlockTable(_message.Message):
    __slots__ = ("group", "blocks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    group: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class SlotFork(_message.Message):
    __slots__ = ("source", "destination", "request_id", "tables", "seed")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    source: int
    destination: int
    request_id: int
    tables: _containers.RepeatedCompositeFieldContainer[BlockTable]
    seed: int
    def __init__(self, source: _Optional[int] = ..., destination: _Optional[int] = ..., request_id: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[BlockTable, _Mapping]]] = ..., seed: _Optional[int] = ...) -> None: ...

class BlockCopies(_message.Message):
    __slots__ = ("group", "sources", "destinations")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    group: int
    sources: _containers.RepeatedScalarFieldContainer[int]
    destinations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[int] = ..., sources: _Optional[_Iterable[int]] = ..., destinations: _Optional[_Iterable[int]] = ...) -> None: ...

class BlockGrowth(_message.Message):
    __slots__ = ("group", "counts", "blocks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    group: int
    counts: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[int] = ..., counts: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "min_tokens", "stop_token_ids", "min_p", "typical_p", "penalties", "logit_bias", "allowed", "banned_token_ids", "watermark", "bad_words", "top_logprobs", "prompt_logprobs", "logprob_token_ids")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    PENALTIES_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    BANNED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    min_p: float
    typical_p: float
    penalties: Penalties
    logit_bias: LogitBias
    allowed: TokenSet
    banned_token_ids: _containers.RepeatedScalarFieldContainer[int]
    watermark: Watermark
    bad_words: _containers.RepeatedCompositeFieldContainer[BadWord]
    top_logprobs: int
    prompt_logprobs: int
    logprob_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., penalties: _Optional[_Union[Penalties, _Mapping]] = ..., logit_bias: _Optional[_Union[LogitBias, _Mapping]] = ..., allowed: _Optional[_Union[TokenSet, _Mapping]] = ..., banned_token_ids: _Optional[_Iterable[int]] = ..., watermark: _Optional[_Union[Watermark, _Mapping]] = ..., bad_words: _Optional[_Iterable[_Union[BadWord, _Mapping]]] = ..., top_logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., logprob_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Penalties(_message.Message):
    __slots__ = ("repetition", "frequency", "presence")
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    repetition: float
    frequency: float
    presence: float
    def __init__(self, repetition: _Optional[float] = ..., frequency: _Optional[float] = ..., presence: _Optional[float] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_ids", "values")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenSet(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class BadWord(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("gamma", "delta", "key")
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    gamma: float
    delta: float
    key: int
    def __init__(self, gamma: _Optional[float] = ..., delta: _Optional[float] = ..., key: _Optional[int] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text", "complete", "max_new_tokens", "end_token_ids", "reasoning")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Grammar.Kind]
        KIND_JSON_SCHEMA: _ClassVar[Grammar.Kind]
        KIND_REGEX: _ClassVar[Grammar.Kind]
        KIND_GRAMMAR: _ClassVar[Grammar.Kind]
        KIND_CALLS: _ClassVar[Grammar.Kind]
        KIND_TEXT: _ClassVar[Grammar.Kind]
    KIND_UNSPECIFIED: Grammar.Kind
    KIND_JSON_SCHEMA: Grammar.Kind
    KIND_REGEX: Grammar.Kind
    KIND_GRAMMAR: Grammar.Kind
    KIND_CALLS: Grammar.Kind
    KIND_TEXT: Grammar.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    kind: Grammar.Kind
    text: str
    complete: bool
    max_new_tokens: int
    end_token_ids: _containers.RepeatedScalarFieldContainer[int]
    reasoning: Reasoning
    def __init__(self, kind: _Optional[_Union[Grammar.Kind, str]] = ..., text: _Optional[str] = ..., complete: bool = ..., max_new_tokens: _Optional[int] = ..., end_token_ids: _Optional[_Iterable[int]] = ..., reasoning: _Optional[_Union[Reasoning, _Mapping]] = ...) -> None: ...

class Reasoning(_message.Message):
    __slots__ = ("open", "close", "started", "budget", "header")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    open: str
    close: str
    started: bool
    budget: int
    header: str
    def __init__(self, open: _Optional[str] = ..., close: _Optional[str] = ..., started: bool = ..., budget: _Optional[int] = ..., header: _Optional[str] = ...) -> None: ...

class StepReply(_message.Message):
    __slots__ = ("epoch", "step", "slots", "counts", "token_ids", "logprobs", "errors", "timing", "closing", "top_counts", "top_token_ids", "top_logprobs", "prompt_logprobs")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    errors: _containers.RepeatedCompositeFieldContainer[SlotError]
    timing: StepTiming
    closing: _containers.RepeatedScalarFieldContainer[int]
    top_counts: _containers.RepeatedScalarFieldContainer[int]
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., errors: _Optional[_Iterable[_Union[SlotError, _Mapping]]] = ..., timing: _Optional[_Union[StepTiming, _Mapping]] = ..., closing: _Optional[_Iterable[int]] = ..., top_counts: _Optional[_Iterable[int]] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("request_id", "start", "logprobs", "ranks", "top", "top_token_ids", "top_logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    start: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    top: int
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, request_id: _Optional[int] = ..., start: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ..., top: _Optional[int] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class SlotError(_message.Message):
    __slots__ = ("slot", "error")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    slot: int
    error: RequestError
    def __init__(self, slot: _Optional[int] = ..., error: _Optional[_Union[RequestError, _Mapping]] = ...) -> None: ...

class StepTiming(_message.Message):
    __slots__ = ("host", "device")
    HOST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    host: int
    device: int
    def __init__(self, host: _Optional[int] = ..., device: _Optional[int] = ...) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ResetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("loaded", "epoch", "steps")
    LOADED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    loaded: bool
    epoch: int
    steps: int
    def __init__(self, loaded: bool = ..., epoch: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutdownReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
