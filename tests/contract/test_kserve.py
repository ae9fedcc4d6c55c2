"""KServe v2: the routes by hand, then `tritonclient` over HTTP and gRPC."""

from __future__ import annotations

import json
import queue
import time
from collections import Counter
from random import Random
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from serving import Server, metrics

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def story(server: Server) -> str:
    """What every way of asking must answer."""
    body = {"model": "brook", "prompt": PROMPT, **GREEDY}
    answer = httpx.post(server.url + "/v1/completions", json=body).json()
    return str(answer["choices"][0]["text"])


def tensor(name: str, datatype: str, data: list[Any]) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}


def infer(server: Server, *inputs: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"inputs": list(inputs), **fields}
    return httpx.post(server.url + "/v2/models/brook/infer", json=body)


def outputs(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text
    return {output["name"]: output["data"] for output in reply.json()["outputs"]}


def test_health_and_metadata_routes(server: Server) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/brook/ready"):
        reply = httpx.get(server.url + path)
        assert (reply.status_code, reply.content) == (200, b""), path
    assert httpx.get(server.url + "/v2").json()["name"] == "penstock"
    for path in ("/v2/models/brook", "/v2/models/penstock/versions/1"):
        model = httpx.get(server.url + path).json()
        assert model["versions"] == ["1"]
        assert {"name": "text_input", "datatype": "BYTES", "shape": [1]} in model["inputs"]
        assert {"name": "text_output", "datatype": "BYTES", "shape": [-1]} in model["outputs"]
    for path in ("/v2/models/other", "/v2/models/brook/versions/2", "/v2/models/other/ready"):
        reply = httpx.get(server.url + path)
        assert reply.status_code == 404
        assert "other" in reply.json()["error"] or "`2`" in reply.json()["error"]


def test_infer(server: Server, story: str) -> None:
    text = tensor("text_input", "BYTES", [PROMPT])
    reply = infer(server, text, parameters=GREEDY, id="seven")
    assert reply.json()["id"] == "seven"
    assert outputs(reply) == {"text_output": [PROMPT + story]}
    sampling = tensor("sampling_parameters", "BYTES", [json.dumps({"temperature": "0"})])
    short = tensor("exclude_input_in_output", "BOOL", [True])
    wants = tensor("return_num_output_tokens", "BOOL", [True])
    answer = outputs(infer(server, text, sampling, short, wants))
    assert answer["num_output_tokens"] == [16]
    assert answer["text_output"][0].startswith(story)


def test_turbomind_tensors(server: Server, story: str) -> None:
    ids = [token["id"] for token in tokens(server, PROMPT)]
    answer = outputs(
        infer(
            server,
            tensor("input_ids", "UINT32", ids) | {"shape": [1, len(ids)]},
            tensor("input_lengths", "UINT32", [len(ids)]),
            tensor("request_output_len", "UINT32", [12]),
            tensor("runtime_top_k", "UINT32", [1]),
            tensor("random_seed", "UINT64", [2**64 - 1]),
        )
    )
    assert answer["sequence_length"] == [12]
    text = "".join(token["text"] for token in tokens(server, PROMPT + story)[len(ids) :])
    assert len(answer["output_ids"]) == 12
    assert text == story


def tokens(server: Server, text: str) -> list[dict[str, Any]]:
    reply = httpx.post(server.url + "/tokenize", json={"inputs": text})
    return list(reply.json())


def test_generate(server: Server, story: str) -> None:
    url = server.url + "/v2/models/brook/generate"
    body: dict[str, Any] = {"text_input": PROMPT, "parameters": {**GREEDY, "stream": False}}
    answer = httpx.post(url, json=body | {"return_finish_reason": True, "id": "x"}).json()
    assert answer == {
        "id": "x",
        "model_name": "brook",
        "model_version": "1",
        "finish_reason": "length",
        "text_output": PROMPT + story,
    }
    body["parameters"]["stream"] = True
    assert httpx.post(url, json=body).status_code == 422
    reply = httpx.post(url + "_stream", json=body | {"return_finish_reason": True})
    assert reply.headers["content-type"] == "text/event-stream"
    frames = reply.text.removesuffix("\n\n").split("\n\n")
    pieces = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert len(pieces) > 3
    assert "".join(piece["text_output"] for piece in pieces) == story
    reasons = [piece["finish_reason"] for piece in pieces]
    assert reasons == ["None"] * (len(pieces) - 1) + ["length"]  # as vLLM's backend in Triton


def test_add_special_tokens_is_respected(server: Server) -> None:
    text = tensor("text_input", "BYTES", ["Once"])
    wants = tensor("return_num_input_tokens", "BOOL", [True])

    def count(adds: bool) -> int:
        parameters = {"max_tokens": 1, "add_special_tokens": adds}
        answer = outputs(infer(server, text, wants, parameters=parameters))
        return int(answer["num_input_tokens"][0])

    assert count(True) == count(False) + 1


BAD = {
    "unknown input": ([tensor("colour", "BYTES", ["red"])], {}, "`inputs`: unknown input `colour`"),
    "input twice": (
        [tensor("text_input", "BYTES", ["a"]), tensor("text_input", "BYTES", ["b"])],
        {},
        "`inputs`: `text_input` is given twice",
    ),
    "no prompt": ([], {}, "text_input"),
    "two prompts": (
        [tensor("text_input", "BYTES", ["a"]), tensor("input_ids", "UINT32", [5])],
        {},
        "input_ids",
    ),
    "shape": ([tensor("text_input", "BYTES", ["a"]) | {"shape": [2]}], {}, "text_input"),
    "datatype": ([tensor("text_input", "FP16", ["a"])], {}, "FP16"),
    "data": ([tensor("stream", "BOOL", [1])], {}, "stream"),
    "stream": (
        [tensor("text_input", "BYTES", ["a"]), tensor("stream", "BOOL", [True])],
        {},
        "stream",
    ),
    "sampling": ([tensor("text_input", "BYTES", ["a"])], {"temperature": -1}, "temperature"),
    "unknown parameter": ([tensor("text_input", "BYTES", ["a"])], {"colour": 1}, "colour"),
    "no sampling parameter": (
        [tensor("text_input", "BYTES", ["a"])],
        {"return_token_ids": True},
        "`return_token_ids`",
    ),
    "token id": ([tensor("input_ids", "UINT32", [10**9])], {}, "input_ids"),
    "length": (
        [tensor("input_ids", "UINT32", [5]), tensor("input_lengths", "UINT32", [2])],
        {},
        "input_lengths",
    ),
    "two answers": ([tensor("text_input", "BYTES", ["a"])], {"n": 2}, "`n`"),
}


@pytest.mark.parametrize(("inputs", "parameters", "name"), BAD.values(), ids=BAD)
def test_bad_input_is_named(
    server: Server, inputs: list[dict[str, Any]], parameters: dict[str, Any], name: str
) -> None:
    reply = infer(server, *inputs, parameters=parameters)
    assert reply.status_code == 422, reply.text
    assert name in reply.json()["error"]


def sample_inputs(module: Any, stream: bool) -> list[Any]:
    made = []
    for name, array, datatype in (
        ("text_input", np.array([PROMPT.encode()], dtype=np.object_), "BYTES"),
        ("stream", np.array([stream]), "BOOL"),
        ("exclude_input_in_output", np.array([True]), "BOOL"),
        (
            "sampling_parameters",
            np.array([json.dumps(GREEDY).encode()], dtype=np.object_),
            "BYTES",
        ),
    ):
        made.append(module.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


@pytest.mark.parametrize("binary", [None, True, False])
def test_tritonclient_http(server: Server, story: str, binary: bool | None) -> None:
    client_module = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
    with client_module.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("brook")
        assert not client.is_model_ready("other")
        assert client.get_model_metadata("brook")["name"] == "brook"
        wanted = None
        if binary is not None:
            wanted = [client_module.InferRequestedOutput("text_output", binary_data=binary)]
        answer = client.infer("brook", sample_inputs(client_module, False), outputs=wanted)
    text = answer.as_numpy("text_output")[0]
    assert (text.decode() if isinstance(text, bytes) else text) == story


def grpc_client(server: Server) -> tuple[Any, Any]:
    module = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient[grpc]")
    port = server.options[server.options.index("--kserve-grpc-port") + 1]
    return module, module.InferenceServerClient(f"127.0.0.1:{port}")


def test_tritonclient_grpc(server: Server, story: str) -> None:
    module, client = grpc_client(server)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("brook", "1")
    assert client.get_server_metadata().name == "penstock"
    metadata = client.get_model_metadata("brook")
    assert "text_input" in [tensor.name for tensor in metadata.inputs]
    answer = client.infer("brook", sample_inputs(module, False), request_id="seven")
    assert answer.as_numpy("text_output")[0].decode() == story
    assert answer.get_response().id == "seven"
    with pytest.raises(Exception, match="does not exist"):
        client.infer("other", sample_inputs(module, False))
    with pytest.raises(Exception, match="`text_input` is missing"):
        client.infer("brook", [])
    with pytest.raises(Exception, match="ModelStreamInfer"):
        client.infer("brook", sample_inputs(module, True))
    client.close()


def test_grpc_survives_corrupted_messages(server: Server, story: str) -> None:
    """Bytes of good requests, changed at random, are answered or refused; the server goes on."""
    module, client = grpc_client(server)
    random = Random(5)
    good = module.service_pb2.ModelInferRequest(model_name="brook", id="x")
    good.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    good.raw_input_contents.append(len(PROMPT).to_bytes(4, "little") + PROMPT.encode())
    good.parameters["max_tokens"].int64_param = 2
    call = client._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    codes = Counter()
    for _ in range(300):
        data = bytearray(good.SerializeToString())
        for _ in range(random.randrange(4)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            call(bytes(data), timeout=30)
            codes["OK"] += 1
        except grpc.RpcError as error:
            codes[error.code().name] += 1
            # What is no message at all never reaches us.
            undecoded = "decode" in error.details() or "buffer" in error.details()
            assert error.code().name in ("INVALID_ARGUMENT", "NOT_FOUND") or undecoded, error
    assert codes["OK"] > 50
    assert codes["INVALID_ARGUMENT"] > 50
    answer = client.infer("brook", sample_inputs(module, False))
    assert answer.as_numpy("text_output")[0].decode() == story
    client.close()


def test_tritonclient_grpc_stream(server: Server, story: str) -> None:
    module, client = grpc_client(server)
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(callback=lambda result, error: got.put((result, error)))
    for request in ("a", "b"):
        client.async_stream_infer(
            "brook",
            sample_inputs(module, True),
            request_id=request,
            enable_empty_final_response=True,
        )
    client.async_stream_infer("brook", [], request_id="c")
    texts = {"a": "", "b": ""}
    open_requests, errors, pieces = {"a", "b"}, 0, 0
    while open_requests or not errors:
        result, error = got.get(timeout=60)
        if error is not None:
            assert "text_input" in str(error)
            errors += 1
            continue
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            open_requests.remove(response.id)
            continue
        texts[response.id] += result.as_numpy("text_output")[0].decode()
        pieces += 1
    client.stop_stream()
    client.close()
    assert texts == {"a": story, "b": story}
    assert pieces > 6


def test_tritonclient_queries_model_metadata(server: Server) -> None:
    module = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
    grpc_module, grpc_side = grpc_client(server)
    with module.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        config = client.get_model_config("brook", "1")
        assert config["name"] == config_of(grpc_side)["name"] == "brook"
        metadata = client.get_model_metadata("brook")
        for side, tensors in (("input", "inputs"), ("output", "outputs")):
            reported = [
                (t["name"], t["data_type"], [int(d) for d in t["dims"]]) for t in config[side]
            ]
            beside = config_of(grpc_side)[side]
            assert reported == [
                (t["name"], t["data_type"], [int(d) for d in t["dims"]]) for t in beside
            ]
            named = {"BYTES": "STRING"}
            assert reported == [
                (t["name"], "TYPE_" + named.get(t["datatype"], t["datatype"]), t["shape"])
                for t in metadata[tensors]
            ]
        index = client.get_model_repository_index()
        assert index == [{"name": "brook", "version": "1", "state": "READY", "reason": ""}]
        assert grpc_side.get_model_repository_index(as_json=True)["models"][0]["state"] == "READY"
        with pytest.raises(Exception, match="does not exist"):
            client.get_model_config("other")
        with pytest.raises(Exception, match="does not exist"):
            grpc_side.get_inference_statistics("other")
        with pytest.raises(Exception, match="no version `2`"):
            grpc_side.get_inference_statistics("", "2")
        asked = grpc_module.service_pb2.RepositoryIndexRequest(repository_name="other")
        with pytest.raises(Exception, match=r"`repository_name` must be empty.*Given: `other`"):
            grpc_side._client_stub.RepositoryIndex(asked)
        with pytest.raises(Exception, match=r"(?i)unimplemented"):
            grpc_side.load_model("brook")
    grpc_side.close()


def config_of(client: Any) -> dict[str, Any]:
    return dict(client.get_model_config("brook", as_json=True)["config"])


def until_idle(server: Server) -> None:
    """Until what earlier tests left open has ended, and so is counted."""
    deadline = time.monotonic() + 60
    idle = ("tgi_batch_current_size 0\n", "tgi_queue_size 0\n")
    while not all(line in metrics(server) for line in idle):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_statistics_count_served_requests(server: Server) -> None:
    module = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
    _, grpc_side = grpc_client(server)
    with module.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        until_idle(server)
        (before,) = client.get_inference_statistics()["model_stats"]
        client.infer("brook", sample_inputs(module, False))
        refused = httpx.post(server.url + "/v1/completions", json={"prompt": "a", "n": 0})
        assert refused.status_code == 400
        (after,) = client.get_inference_statistics("brook", "1")["model_stats"]
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["last_inference"] > before["last_inference"]
    then, now = before["inference_stats"], after["inference_stats"]
    assert now["cache_hit"] == now["cache_miss"] == {"count": 0, "ns": 0}
    # A client of an earlier test may be noticed to be gone only now.
    assert now["fail"]["count"] >= then["fail"]["count"] + 1
    for name in ("success", "fail", "queue", "compute_infer"):
        assert now[name]["count"] == then[name]["count"] + 1 or name == "fail", name
        assert now[name]["ns"] > then[name]["ns"] or name == "queue", name
    parts = sum(now[n]["ns"] - then[n]["ns"] for n in ("queue", "compute_input", "compute_infer"))
    assert abs(parts - (now["success"]["ns"] - then["success"]["ns"])) < 10_000_000
    (reported,) = grpc_side.get_inference_statistics("brook").model_stats
    assert reported.inference_count == after["inference_count"]
    assert reported.inference_stats.success.ns == now["success"]["ns"]
    assert reported.inference_stats.HasField("cache_hit")
    assert reported.inference_stats.HasField("cache_miss")
    grpc_side.close()
