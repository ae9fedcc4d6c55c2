//! The gRPC interface of the protocol, with its own port and thread.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use penstock_request::client::Client;
use penstock_request::error::{ApiError, ErrorKind, Excerpt};
use penstock_request::tenant::{ActiveRequest, Caller};
use penstock_text::Charge;
use prost::Message;
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tonic::{Code, Request, Response, Status, Streaming};

use super::generated::inference::grpc_inference_service_server::{
    GrpcInferenceService, GrpcInferenceServiceServer,
};
use super::generated::inference::infer_parameter::ParameterChoice;
use super::generated::inference::model_infer_request::InferInputTensor;
use super::generated::inference::model_infer_response::InferOutputTensor;
use super::generated::inference::model_metadata_response::TensorMetadata;
use super::generated::inference::repository_index_response::ModelIndex;
use super::generated::inference::{
    DataType, InferParameter, InferStatistics, InferTensorContents, ModelConfig,
    ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelInput,
    ModelMetadataRequest, ModelMetadataResponse, ModelOutput, ModelReadyRequest,
    ModelReadyResponse, ModelStatistics, ModelStatisticsRequest, ModelStatisticsResponse,
    ModelStreamInferResponse, ModelTransactionPolicy, RepositoryIndexRequest,
    RepositoryIndexResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
    ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse, StatisticDuration,
};
use super::generation_request::{Delivery, GenerationRequest};
use super::limited_stream::limited_connections;
use super::output_stream::OutputStream;
use super::tensor::{Datatype, Elements, OutTensor, Tensor, utf8_value, wrong};
use super::{VERSION, check_version, model_metadata, repository, server_metadata};
use crate::App;
use crate::access::begin;

/// Maximum number of concurrent calls of a connection, and of concurrent requests of a stream; more
/// wait.
const AT_ONCE: usize = 256;
/// Interval of HTTP/2 pings, and time to wait for a reply before a connection is closed.
const PING: Duration = Duration::from_secs(30);
/// Parameter that marks the last response to a request, if the client enabled it.
const FINAL: &str = "triton_final_response";
const ASKS_FINAL: &str = "triton_enable_empty_final_response";

/// Serves at most `connections` connections on a thread of its own until `stop` changes. Then the
/// returned channel closes.
pub(crate) fn start(
    listener: TcpListener,
    app: &App,
    connections: usize,
    mut stop: watch::Receiver<bool>,
) -> io::Result<oneshot::Receiver<()>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = listener.into_std()?;
    let (service, listener) = {
        let _inside = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        (Service(app.on_this_runtime()), listener)
    };
    let largest = app.config.max_body_bytes;
    let service = GrpcInferenceServiceServer::new(service).max_decoding_message_size(largest);
    let stopped = async move {
        // An error means that the sender was dropped, which also means stop.
        let _ = stop.changed().await;
    };
    let served = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .concurrency_limit_per_connection(AT_ONCE)
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PING))
        .add_service(service)
        .serve_with_incoming_shutdown(
            limited_connections(listener, connections, app.config.tls.clone()),
            stopped,
        );
    let (ended, end) = oneshot::channel();
    thread::Builder::new()
        .name("kserve-grpc".into())
        .spawn(move || {
            if let Err(error) = runtime.block_on(served) {
                tracing::error!("the gRPC server ended: {error}");
            }
            drop(ended);
        })?;
    Ok(end)
}

struct Service(App);

/// The responses to one request of a stream.
struct StreamResponses {
    id: String,
    model: String,
    answer: OutputStream,
    marks_end: bool,
    ended: bool,
    _active: Option<ActiveRequest>,
}

type BoxStream<T> = Pin<Box<dyn Stream<Item = T> + Send>>;
type Streamed = Result<ModelStreamInferResponse, Status>;

impl Service {
    /// Returns the server's state if the call may use it; health checks need no key.
    fn authorized<T>(&self, request: &Request<T>) -> Result<&App, Status> {
        self.caller(request).map(|_| &self.0)
    }

    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let headers = request.metadata().as_ref();
        self.0.config.access.caller(headers).map_err(status)
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    type ModelStreamInferStream = BoxStream<Streamed>;

    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        let ready = self.0.generator.not_ready_reason().is_none();
        Ok(Response::new(ServerReadyResponse { ready }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let ModelReadyRequest { name, version } = request.into_inner();
        check_version(&self.0, &name, &version).map_err(status)?;
        let ready = self.0.generator.not_ready_reason().is_none();
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        request: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        self.authorized(&request)?;
        let metadata = server_metadata();
        Ok(Response::new(ServerMetadataResponse {
            name: metadata.name.into(),
            version: metadata.version.into(),
            extensions: metadata.extensions.map(String::from).into(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let app = self.authorized(&request)?;
        let ModelMetadataRequest { name, version } = request.into_inner();
        check_version(app, &name, &version).map_err(status)?;
        let metadata = model_metadata(app, &name);
        let tensors = |tensors: Vec<super::wire::TensorMetadata>| {
            let tensors = tensors.into_iter().map(|tensor| TensorMetadata {
                name: tensor.name.into(),
                datatype: tensor.datatype.into(),
                shape: tensor.shape.into(),
            });
            tensors.collect()
        };
        Ok(Response::new(ModelMetadataResponse {
            name: metadata.name,
            versions: metadata.versions.map(String::from).into(),
            platform: metadata.platform.into(),
            inputs: tensors(metadata.inputs),
            outputs: tensors(metadata.outputs),
        }))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let app = self.authorized(&request)?;
        let ModelConfigRequest { name, version } = request.into_inner();
        check_version(app, &name, &version).map_err(status)?;
        let config = Some(config(repository::model_config(app, &name)));
        Ok(Response::new(ModelConfigResponse { config }))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let app = self.authorized(&request)?;
        let ModelStatisticsRequest { name, version } = request.into_inner();
        let name = Some(name).filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| app.config.model_id.clone());
        check_version(app, &name, &version).map_err(status)?;
        let model_stats = vec![statistics(repository::model_statistics(app, &name))];
        Ok(Response::new(ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let app = self.authorized(&request)?;
        let RepositoryIndexRequest {
            repository_name,
            ready,
        } = request.into_inner();
        if !repository_name.is_empty() {
            let rule = format!(
                "must be empty: there is one repository. Given: `{}`",
                Excerpt::new(&repository_name)
            );
            return Err(status(ApiError::at("repository_name", &rule)));
        }
        let models = repository::models(app, ready).into_iter();
        let models = models.map(|model| ModelIndex {
            name: model.name,
            version: model.version.into(),
            state: model.state.into(),
            reason: model.reason,
        });
        Ok(Response::new(RepositoryIndexResponse {
            models: models.collect(),
        }))
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        let (app, caller, client) = (&self.0, self.caller(&request)?, client(&request));
        let _active = begin(&caller).map_err(status)?;
        let request = request.into_inner();
        let (id, model) = (request.id.clone(), request.model_name.clone());
        let infer = async {
            let (generation_request, charge) = read(app, request)?;
            generation_request.check_stream(Delivery::Whole, "ModelStreamInfer")?;
            let mut answer = OutputStream::new(
                generation_request
                    .begin(app, Delivery::Whole, charge)
                    .await?,
            );
            answer.whole().await
        };
        let tensors = client.scope(caller.scope(infer)).await.map_err(status)?;
        Ok(Response::new(response(&id, &model, tensors)))
    }

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        let (app, caller, client) = (self.0.clone(), self.caller(&request)?, client(&request));
        let answers = request.into_inner().map(move |request| {
            let (app, caller) = (app.clone(), caller.clone());
            let answers = async move {
                match request {
                    Ok(request) => {
                        let streamed = stream(&app, &caller, request);
                        client.scope(caller.clone().scope(streamed)).await
                    }
                    Err(status) => one(Err(status)),
                }
            };
            Box::pin(futures_util::stream::once(answers).flatten())
        });
        Ok(Response::new(Box::pin(answers.flatten_unordered(AT_ONCE))))
    }
}

fn config(source: repository::ModelConfig) -> ModelConfig {
    // `DataType` has a name for every datatype of our tensors.
    let data_type = |name: &str| DataType::from_str_name(name).unwrap_or_default().into();
    let inputs = source.input.into_iter().map(|tensor| ModelInput {
        name: tensor.name.into(),
        data_type: data_type(&tensor.data_type),
        dims: tensor.dims.into(),
        optional: tensor.optional.unwrap_or(false),
    });
    let outputs = source.output.into_iter().map(|tensor| ModelOutput {
        name: tensor.name.into(),
        data_type: data_type(&tensor.data_type),
        dims: tensor.dims.into(),
    });
    ModelConfig {
        name: source.name,
        platform: source.platform.into(),
        backend: source.backend.into(),
        max_batch_size: source.max_batch_size,
        input: inputs.collect(),
        output: outputs.collect(),
        model_transaction_policy: Some(ModelTransactionPolicy {
            decoupled: source.model_transaction_policy.decoupled,
        }),
    }
}

fn statistics(source: repository::ModelStatistics) -> ModelStatistics {
    let duration = |source: repository::Duration| {
        Some(StatisticDuration {
            count: source.count,
            ns: source.ns,
        })
    };
    let times = source.inference_stats;
    ModelStatistics {
        name: source.name,
        version: source.version.into(),
        last_inference: source.last_inference,
        inference_count: source.inference_count,
        execution_count: source.execution_count,
        inference_stats: Some(InferStatistics {
            success: duration(times.success),
            fail: duration(times.fail),
            queue: duration(times.queue),
            compute_input: duration(times.compute_input),
            compute_infer: duration(times.compute_infer),
            compute_output: duration(times.compute_output),
            cache_hit: duration(times.cache_hit),
            cache_miss: duration(times.cache_miss),
        }),
    }
}

/// Returns the responses to one request of a stream. An error is sent as a response and does not
/// end the stream.
async fn stream(app: &App, caller: &Caller, request: ModelInferRequest) -> BoxStream<Streamed> {
    let (id, model) = (request.id.clone(), request.model_name.clone());
    let active = match begin(caller) {
        Ok(active) => active,
        Err(error) => return one(Ok(failure(&id, &model, &error))),
    };
    let asks = request.parameters.get(ASKS_FINAL);
    let asks = asks.and_then(|parameter| parameter.parameter_choice.as_ref());
    let marks_end = matches!(asks, Some(ParameterChoice::BoolParam(true)));
    let began = async {
        let (generation_request, charge) = read(app, request)?;
        let delivery = generation_request.delivery();
        let running = generation_request.begin(app, delivery, charge).await?;
        Ok((OutputStream::new(running), delivery))
    };
    match began.await {
        Err(error) => one(Ok(failure(&id, &model, &error))),
        Ok((mut answer, Delivery::Whole)) => one(Ok(match answer.whole().await {
            Ok(tensors) => success(response(&id, &model, tensors), marks_end),
            Err(error) => failure(&id, &model, &error),
        })),
        Ok((answer, Delivery::Stream)) => Box::pin(StreamResponses {
            id,
            model,
            answer,
            marks_end,
            ended: false,
            _active: active,
        }),
    }
}

/// Returns the client of a call.
fn client<T>(request: &Request<T>) -> Client {
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    Client::at(
        request
            .remote_addr()
            .map_or(unknown, |address| address.ip()),
    )
}

fn one(streamed: Streamed) -> BoxStream<Streamed> {
    Box::pin(futures_util::stream::once(std::future::ready(streamed)))
}

impl Stream for StreamResponses {
    type Item = Streamed;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Streamed>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        this.answer.poll_next(cx).map(|next| {
            let streamed = match next {
                Some(Ok(tensors)) => success(response(&this.id, &this.model, tensors), false),
                Some(Err(error)) => {
                    this.ended = true;
                    failure(&this.id, &this.model, &error)
                }
                None => {
                    this.ended = true;
                    if !this.marks_end {
                        return None;
                    }
                    success(response(&this.id, &this.model, Vec::new()), true)
                }
            };
            Some(Ok(streamed))
        })
    }
}

fn success(mut response: ModelInferResponse, last: bool) -> ModelStreamInferResponse {
    if last {
        let parameter_choice = Some(ParameterChoice::BoolParam(true));
        let mark = InferParameter { parameter_choice };
        response.parameters.insert(FINAL.into(), mark);
    }
    ModelStreamInferResponse {
        error_message: String::new(),
        infer_response: Some(response),
    }
}

fn failure(id: &str, model: &str, error: &ApiError) -> ModelStreamInferResponse {
    ModelStreamInferResponse {
        error_message: error.message.clone(),
        infer_response: Some(response(id, model, Vec::new())),
    }
}

fn response(id: &str, model: &str, tensors: Vec<OutTensor>) -> ModelInferResponse {
    let raw_output_contents = tensors.iter().map(|t| t.values.raw()).collect();
    let outputs = tensors.into_iter().map(|tensor| InferOutputTensor {
        name: tensor.output.name().into(),
        datatype: tensor.values.datatype().into(),
        shape: tensor.shape,
        parameters: HashMap::new(),
        contents: None,
    });
    ModelInferResponse {
        model_name: model.into(),
        model_version: VERSION.into(),
        id: id.into(),
        parameters: HashMap::new(),
        outputs: outputs.collect(),
        raw_output_contents,
    }
}

/// Returns the inputs of a request, and the charge for its bytes, as for an HTTP body.
fn read(app: &App, request: ModelInferRequest) -> Result<(GenerationRequest, Charge), ApiError> {
    check_version(app, &request.model_name, &request.model_version)?;
    let mut holding = app.bodies.hold();
    holding.add(request.encoded_len())?;
    let mut generation_request = GenerationRequest::default();
    let mut raw = request.raw_input_contents.iter();
    let are_raw = !request.raw_input_contents.is_empty();
    for input in request.inputs {
        let tensor = tensor(input, are_raw.then(|| raw.next()))?;
        let name = tensor.name.clone();
        generation_request.set(&name, tensor.value(GenerationRequest::is_list(&name))?)?;
    }
    if raw.next().is_some() {
        let rule = "`raw_input_contents` has more entries than `inputs`";
        return Err(ApiError::validation("raw_input_contents", rule));
    }
    let mut parameters = Map::new();
    for (name, parameter) in request.parameters {
        parameters.insert(name, value(parameter));
    }
    generation_request.parameters(parameters)?;
    for output in request.outputs {
        generation_request.add_requested_output(&output.name)?;
    }
    Ok((generation_request, holding.charge()))
}

/// Reads an input; `raw` is its entry of `raw_input_contents`, if the request uses them.
fn tensor(input: InferInputTensor, raw: Option<Option<&Vec<u8>>>) -> Result<Tensor, ApiError> {
    let InferInputTensor { name, shape, .. } = input;
    let datatype = Datatype::parse(&input.datatype, &name)?;
    let elements = match (raw, input.contents) {
        (Some(Some(raw)), None) => datatype.read(raw, &name)?,
        (None, Some(contents)) => {
            let elements = elements(datatype, contents, &name)?;
            datatype.check(&elements, &name)?;
            elements
        }
        _ => {
            let rule = "must have `contents`, or an entry of `raw_input_contents`";
            return Err(wrong(&name, rule));
        }
    };
    Tensor::new(name, &shape, elements)
}

fn elements(
    datatype: Datatype,
    contents: InferTensorContents,
    name: &str,
) -> Result<Elements, ApiError> {
    fn all<T: Into<Value>>(values: Vec<T>) -> Vec<Value> {
        values.into_iter().map(Into::into).collect()
    }
    Ok(Elements(match datatype {
        Datatype::Bool => all(contents.bool_contents),
        Datatype::Unsigned(8) => all(contents.uint64_contents),
        Datatype::Unsigned(_) => all(contents.uint_contents),
        Datatype::Signed(8) => all(contents.int64_contents),
        Datatype::Signed(_) => all(contents.int_contents),
        Datatype::Fp32 => {
            // As raw bytes, so that floats keep their shortest decimal form.
            let values = contents.fp32_contents.iter();
            let raw: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
            return datatype.read(&raw, name);
        }
        Datatype::Fp64 => all(contents.fp64_contents),
        Datatype::Bytes => {
            let texts = contents.bytes_contents.iter();
            texts
                .map(|text| utf8_value(text, name))
                .collect::<Result<_, _>>()?
        }
    }))
}

fn value(parameter: InferParameter) -> Value {
    match parameter.parameter_choice {
        None => Value::Null,
        Some(ParameterChoice::BoolParam(value)) => Value::from(value),
        Some(ParameterChoice::Int64Param(value)) => Value::from(value),
        Some(ParameterChoice::Uint64Param(value)) => Value::from(value),
        Some(ParameterChoice::DoubleParam(value)) => Value::from(value),
        Some(ParameterChoice::StringParam(value)) => Value::from(value),
    }
}

fn status(error: ApiError) -> Status {
    let code = match error.kind {
        ErrorKind::NotFound | ErrorKind::ModelNotFound => Code::NotFound,
        ErrorKind::Unauthorized => Code::Unauthenticated,
        ErrorKind::Forbidden => Code::PermissionDenied,
        ErrorKind::Method => Code::Unimplemented,
        ErrorKind::Timeout | ErrorKind::Deadline => Code::DeadlineExceeded,
        ErrorKind::Overloaded | ErrorKind::TooLarge => Code::ResourceExhausted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Generation | ErrorKind::Internal => Code::Internal,
        _ => Code::InvalidArgument,
    };
    Status::new(code, error.message)
}
