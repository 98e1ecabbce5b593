"""The compose file, as far as that can be told without Docker: versions, secrets, ports, health, who needs whom."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
import yaml
from cryptography.fernet import Fernet
from typer.main import get_command

from ratchet.cli import app
from ratchet.dev.stack import postgres
from ratchet.dev.stack.connect import SERVER, SparkConnect
from ratchet.dev.stack.prerequisites import JAVAS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GUIDE = (ROOT / "docs" / "server.md").read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")


def strings(of, path=()):
    """(path, string) of every string."""
    match of:
        case dict():
            for name, value in of.items():
                yield from strings(value, (*path, name))
        case list():
            for number, value in enumerate(of):
                yield from strings(value, (*path, number))
        case str():
            yield path, of


@pytest.fixture(scope="module")
def env(tmp_path_factory) -> dict[str, str]:
    """The .env that the guide's commands write."""
    commands = re.search(r"```sh\n(umask 077\n.*?)```", GUIDE, re.DOTALL)
    assert commands, "docs/server.md does not say how to make .env"
    where = tmp_path_factory.mktemp("server")
    subprocess.run(["bash", "-euc", commands[1]], cwd=where, check=True)
    assert (where / ".env").stat().st_mode & 0o777 == 0o600
    return dict(line.split("=", 1) for line in (where / ".env").read_text().splitlines())


@pytest.fixture(scope="module")
def compose(env) -> dict:
    """The file as Compose understands it, with its variables filled in."""

    def value(found: re.Match) -> str:
        name, kind, default = found.groups()
        return env[name] if kind == "?" else env.get(name, default)

    # Compose writes a dollar sign as two.
    return yaml.safe_load(re.sub(r"\$\$", "$", VARIABLE.sub(value, TEXT.replace("$${", "$$ {"))).replace("$ {", "${"))


def pin(package: str) -> str:
    return next(d.partition("==")[2] for d in PROJECT["dependencies"] if d.startswith(f"{package}=="))


def dockerfile(compose: dict) -> str:
    (built,) = [s["build"]["dockerfile_inline"] for s in compose["services"].values() if "build" in s]
    return built


def test_every_image_has_an_exact_version(compose):
    images = {name: service["image"] for name, service in compose["services"].items()}
    for image in (*images.values(), re.search(r"^FROM (\S+)", dockerfile(compose))[1]):
        assert re.fullmatch(r"[a-z][a-z/]*:\d+\.\d+(\.\d+)?(-[a-z-]+)?", image), image


def test_versions_are_those_that_the_tests_run_on(compose):
    services = compose["services"]
    broker = ElementTree.parse(ROOT / "ivy.xml").find(".//dependency[@name='kafka_2.13']").get("rev")
    assert services["kafka"]["image"] == f"apache/kafka:{broker}"
    said = subprocess.run([postgres.binary("postgres"), "--version"], capture_output=True, text=True, check=True)
    assert services["postgres"]["image"].startswith(f"postgres:{said.stdout.split()[2]}-")
    assert services["scheduler"]["image"] == f"ratchet:{PROJECT['version']}"
    assert services["spark"]["command"][-1].split()[-1] == str(SERVER.relative_to(ROOT)) and SERVER.is_file()
    python = re.search(r"^FROM python:(3\.\d+)", dockerfile(compose))[1]
    assert (3, 11) <= tuple(map(int, python.split(".")))
    assert int(re.search(r"openjdk-(\d+)", dockerfile(compose))[1]) in JAVAS


def test_every_service_has_a_health_check_or_is_waited_for_to_end(compose):
    services = compose["services"]
    conditions = [
        (needed, how["condition"])
        for service in services.values()
        for needed, how in service.get("depends_on", {}).items()
    ]
    once = {needed for needed, condition in conditions if condition == "service_completed_successfully"}
    assert once == {"init"} and services["init"]["restart"] == "no"
    assert {name for name, service in services.items() if "healthcheck" not in service} == once
    assert {needed for needed, _ in conditions} <= services.keys()
    assert {condition for _, condition in conditions} == {"service_completed_successfully", "service_healthy"}
    assert all(service["restart"] == "unless-stopped" for name, service in services.items() if name not in once)


def test_no_secret_is_written_down_and_none_has_a_default():
    raw = list(strings(yaml.safe_load(TEXT)))
    secret = re.compile(r"PASSWORD|SECRET|FERNET|CLUSTER_ID|TOKEN")
    for path, value in raw:
        if isinstance(path[-1], str) and secret.search(path[-1]):
            assert VARIABLE.fullmatch(value), path
        for found in re.finditer(r'"password": "([^"]*)"|://[^:/@\s]+:([^@]*)@', value):
            assert VARIABLE.fullmatch(found[1] or found[2]), path
    for name, kind, said in VARIABLE.findall(TEXT.replace("$${", "")):
        assert kind == ("?" if secret.search(name) or name.endswith("KEY") else "-"), name
        assert said


def test_the_guides_commands_give_every_value_that_is_needed_and_fit_for_its_place(compose, env):
    needed = {name for name, kind, _ in VARIABLE.findall(TEXT) if kind == "?"}
    assert env.keys() == needed
    assert len(set(env.values())) == len(env)
    Fernet(env["AIRFLOW_FERNET_KEY"])
    # They stand in URLs and in JSON.
    assert all(re.fullmatch(r"\w{22,}", value) for name, value in env.items() if name != "AIRFLOW_FERNET_KEY")


def test_ports_are_on_the_loopback_only(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 3
    for port in ports:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port
    assert not any("network_mode" in service for service in compose["services"].values())


def test_the_connections_of_the_specs_lead_to_the_services_as_the_pipelines_role(compose):
    services = compose["services"]
    for name in ("scheduler", "triggerer", "dag-processor", "api-server"):
        said = services[name]["environment"]
        ledger, kafka, spark = (json.loads(said[f"AIRFLOW_CONN_RATCHET_{n}"]) for n in ("LEDGER", "KAFKA", "SPARK"))
        assert (ledger["conn_type"], ledger["login"], ledger["host"]) == ("postgres", "ratchet_pipeline", "postgres")
        assert (kafka["conn_type"], spark["conn_type"]) == ("kafka", "spark_connect")
        assert kafka["extra"]["bootstrap.servers"].partition(":")[0] in services
        assert spark["host"].removeprefix("sc://") in services
        assert spark["password"] == services["spark"]["environment"]["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
        assert "RATCHET_LEDGER_URL" not in said
        assert urlsplit(said["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]).hostname in services
        assert said["AIRFLOW__CORE__LAZY_LOAD_PLUGINS"] == "False"
        assert said["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] == "False"
    owner = urlsplit(services["init"]["environment"]["RATCHET_LEDGER_URL"])
    assert (owner.username, owner.hostname) == ("ratchet_owner", "postgres")


def test_all_of_airflow_shares_its_settings_and_its_volume(compose):
    parts = [compose["services"][name] for name in ("scheduler", "triggerer", "dag-processor", "api-server")]
    assert all(p["environment"] == parts[0]["environment"] and p["volumes"] == parts[0]["volumes"] for p in parts)
    used = {v.partition(":")[0] for s in compose["services"].values() for v in s.get("volumes", [])}
    assert used == compose["volumes"].keys()


def test_spark_has_the_settings_that_the_embedded_server_was_measured_with(compose, tmp_path):
    ours = dict(line.split(" ", 1) for line in compose["configs"]["spark"]["content"].splitlines())
    command = SparkConnect(tmp_path, 1, Path("/java/bin/java"), [], {}, lasting=True).server(tmp_path / "log").command
    embedded = dict(said.split("=", 1) for flag, said in zip(command, command[1:], strict=False) if flag == "--conf")
    elsewhere = {
        "spark.connect.grpc.binding.address",
        "spark.connect.grpc.binding.port",
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.driver.memory",
        "spark.sql.warehouse.dir",
        "spark.local.dir",
        "spark.sql.shuffle.partitions",
    }
    assert {n: v for n, v in ours.items() if n not in elsewhere} == {
        n: v for n, v in embedded.items() if n not in elsewhere
    }


def test_spark_connect_is_reached_by_tls_alone_and_its_certificate_is_known_to_airflow_and_its_key_is_not(compose):
    spark, airflow = compose["services"]["spark"], compose["services"]["scheduler"]
    bound = dict(line.split(" ", 1) for line in compose["configs"]["spark"]["content"].splitlines())
    at = bound["spark.connect.grpc.binding.address"], bound["spark.connect.grpc.binding.port"]
    proxy = compose["configs"]["tls"]["content"]
    assert at[0] == "127.0.0.1" and f"grpc_pass grpc://{at[0]}:{at[1]};" in proxy
    connection = json.loads(airflow["environment"]["AIRFLOW_CONN_RATCHET_SPARK"])
    assert f"listen {connection['port']} ssl http2;" in proxy and connection["extra"]["use_ssl"] == "true"
    certificate, key = (re.search(rf"ssl_certificate{what} (\S+);", proxy)[1] for what in ("", "_key"))
    assert airflow["environment"]["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] == certificate
    assert all(path in spark["command"][-1] for path in (key, str(Path(certificate).parent)))
    mounted = [volume.split(":")[1] for volume in airflow["volumes"]]
    assert str(Path(certificate).parent) in mounted and str(Path(key).parent) not in mounted


def test_the_image_is_made_of_what_this_checkout_has(compose):
    copied = [line.split()[2:-1] for line in dockerfile(compose).splitlines() if line.startswith("COPY --chown")]
    names = {name for line in copied for name in line}
    assert all((ROOT / name).exists() for name in names)
    assert {"include", "jobs", "dags", "plugins", "requirements.txt", "ivy.xml", "Makefile"} <= names
    assert 'PATH="/opt/ratchet/.venv/bin:${PATH}"' in dockerfile(compose)
    assert "USER ratchet" in dockerfile(compose)


def test_the_init_service_migrates_both_databases_and_gives_the_roles_that_are_made(compose):
    said, roles = compose["services"]["init"]["command"][-1], compose["configs"]["roles"]["content"]
    assert "airflow db migrate" in said
    given = dict(re.findall(r"--([a-z-]+) (\w+)", said.partition("ratchet migrate")[2]))
    assert given.keys() == {"pipeline-role", "reader-role"}
    assert all(f"create role {role} login" in roles for role in given.values())
    known = {option for command in get_command(app).commands["migrate"].params for option in command.opts}
    assert {f"--{option}" for option in given} <= known
