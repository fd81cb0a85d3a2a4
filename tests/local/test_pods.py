"""Pods on local nodes behave as pods do."""

from __future__ import annotations

import base64
import threading
import time
from pathlib import Path

import pytest

from support.cluster import Namespace, first_state, phase_of

pytestmark = pytest.mark.cluster


def condition(pod: dict, name: str) -> str:
    return next(item["status"] for item in pod["status"]["conditions"] if item["type"] == name)


def test_a_pod_runs_to_success_with_all_conditions_of_a_kubelet(namespace: Namespace) -> None:
    namespace.run("hello", "print('hello')")
    pod = namespace.phase("hello", "Succeeded")
    assert {item["type"] for item in pod["status"]["conditions"]} == {
        "PodScheduled",
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
        "Ready",
    }
    assert condition(pod, "PodScheduled") == "True"
    assert pod["status"]["podIP"].startswith("127.")
    assert namespace.logs("hello") == "hello\n"


def test_a_running_pod_is_ready(namespace: Namespace) -> None:
    namespace.run("sleeper", "import time; time.sleep(100)")
    pod = namespace.phase("sleeper", "Running")
    assert condition(pod, "Ready") == "True"
    assert first_state(pod)["running"]["startedAt"]


def test_exit_code_and_termination_message_are_reported(any_namespace: Namespace) -> None:
    script = "import os; open(os.environ['LAST_WORDS'], 'w').write('out of luck'); raise SystemExit(3)"
    path = "/run/kronos/last-words"
    container = {"terminationMessagePath": path, "env": [{"name": "LAST_WORDS", "value": path}]}
    any_namespace.run("fails", script, container=container)
    ended = first_state(any_namespace.phase("fails", "Failed"))["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "out of luck")


def test_the_log_stands_in_for_a_missing_termination_message(namespace: Namespace) -> None:
    script = "print('first'); raise SystemExit('the last words')"
    namespace.run("fails", script, container={"terminationMessagePolicy": "FallbackToLogsOnError"})
    ended = first_state(namespace.phase("fails", "Failed"))["terminated"]
    assert ended["exitCode"] == 1
    assert "the last words" in ended["message"]


def test_a_command_that_does_not_exist_is_a_start_error(any_namespace: Namespace) -> None:
    any_namespace.run("typo", "", container={"command": ["no-such-program"]})
    ended = first_state(any_namespace.phase("typo", "Failed"))["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert '"no-such-program": executable file not found' in ended["message"]


def test_a_signal_shows_in_exit_code_and_signal(any_namespace: Namespace) -> None:
    any_namespace.run("dies", "import os; os.kill(os.getpid(), 9)")
    ended = first_state(any_namespace.phase("dies", "Failed"))["terminated"]
    assert (ended["exitCode"], ended["signal"]) == (137, 9)


def test_on_failure_runs_again_until_success(namespace: Namespace) -> None:
    script = (
        "import pathlib\n"
        "marker = pathlib.Path('/state/runs'); runs = len(marker.read_text()) if marker.exists() else 0\n"
        "marker.write_text('x' * (runs + 1)); print('run', runs)\n"
        "raise SystemExit(runs < 2)"
    )
    container = {"volumeMounts": [{"name": "state", "mountPath": "/state"}]}
    volumes = [{"name": "state", "emptyDir": {}}]
    namespace.run("retries", script, container=container, volumes=volumes, restartPolicy="OnFailure")
    pod = namespace.phase("retries", "Succeeded")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 2
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert namespace.logs("retries") == "run 2\n"
    assert namespace.logs("retries", "--previous") == "run 1\n"


def test_init_containers_run_first_and_in_order(namespace: Namespace) -> None:
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    inits = [
        {"name": f"init-{n}", "image": "x", "command": ["sh", "-c", f"echo {n} >> /shared/order"], **mount}
        for n in range(2)
    ]
    volumes = [{"name": "shared", "emptyDir": {}}]
    namespace.run(
        "main", "print(open('/shared/order').read())", container=mount, volumes=volumes, initContainers=inits
    )
    pod = namespace.phase("main", "Succeeded")
    assert namespace.logs("main").split() == ["0", "1"]
    assert [item["ready"] for item in pod["status"]["initContainerStatuses"]] == [True, True]


def test_a_failed_init_container_fails_the_pod(namespace: Namespace) -> None:
    init = {"name": "init", "image": "x", "command": ["sh", "-c", "exit 4"]}
    namespace.run("main", "print('never')", initContainers=[init])
    pod = namespace.phase("main", "Failed")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    assert "waiting" in first_state(pod)


def test_several_containers_end_together(namespace: Namespace) -> None:
    def container(name: str, script: str) -> dict:
        return {"name": name, "image": "x", "command": ["python", "-c", script]}

    containers = [container("a", "print('a')"), container("b", "import time; time.sleep(.3); print('b')")]
    namespace.run("both", "", containers=containers)
    namespace.phase("both", "Succeeded")
    assert namespace.logs("both", "-c", "b") == "b\n"


def test_volumes_of_every_kind_are_seen_at_their_paths(namespace: Namespace, tmp_path: Path) -> None:
    namespace.create("configmaps", "settings", data={"a.txt": "alpha", "b.txt": "beta"})
    secret = base64.b64encode(b"hush").decode()
    namespace.create("secrets", "password", data={"word": secret})
    (tmp_path / "data").write_text("from the host")
    names = {"config": "/etc/kronos", "one": "/etc/only", "secret": "/secret", "empty": "/scratch/deep"}
    names |= {"host": "/data", "about": "/about"}
    volumes = [
        {"name": "config", "configMap": {"name": "settings"}},
        {"name": "one", "configMap": {"name": "settings", "items": [{"key": "b.txt", "path": "sub/c.txt"}]}},
        {"name": "secret", "secret": {"secretName": "password", "defaultMode": 0o400}},
        {"name": "empty", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
        {
            "name": "about",
            "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]},
        },
    ]
    mounts = [{"name": name, "mountPath": path} for name, path in names.items()]
    mounts.append({"name": "config", "mountPath": "/etc/single.txt", "subPath": "a.txt"})
    script = (
        "import os\n"
        "for p in ['/etc/kronos/a.txt', '/etc/only/sub/c.txt', '/etc/single.txt', '/secret/word', '/data/data',"
        " '/about/labels']: print(open(p).readline().rstrip())\n"
        "print(os.listdir('/etc/only'), oct(os.stat('/secret/word').st_mode & 0o777))\n"
        "open('/scratch/deep/x', 'w').write('x'); open('/data/out', 'w').write('from the pod')\n"
        "try: open('/etc/kronos/a.txt', 'w')\n"
        "except OSError as error: print(error.strerror)"
    )
    namespace.run("reader", script, container={"volumeMounts": mounts}, volumes=volumes, labels={"app": "x"})
    namespace.phase("reader", "Succeeded", "Failed")
    expected = ["alpha", "beta", "alpha", "hush", "from the host", 'app="x"', "['sub'] 0o400"]
    assert namespace.logs("reader").splitlines() == [*expected, "Read-only file system"]
    assert (tmp_path / "out").read_text() == "from the pod"


def test_paths_in_command_and_environment_work_without_namespaces(
    any_namespace: Namespace, tmp_path: Path
) -> None:
    any_namespace.create("configmaps", "settings", data={"a.txt": "alpha"})
    volumes = [
        {"name": "config", "configMap": {"name": "settings"}},
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
    ]
    container = {
        "command": ["sh", "-c", 'cat "$CONFIG" > /out/copy && pwd > /out/where'],
        "env": [{"name": "CONFIG", "value": "/etc/kronos/a.txt"}],
        "workingDir": "/out",
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/kronos"},
            {"name": "host", "mountPath": "/out"},
        ],
    }
    any_namespace.run("copier", "", container=container, volumes=volumes)
    any_namespace.phase("copier", "Succeeded")
    assert (tmp_path / "copy").read_text() == "alpha"


def test_a_claim_is_the_folder_of_its_persistent_volume(namespace: Namespace, tmp_path: Path) -> None:
    name = f"disk-{namespace.name}"
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**common, "capacity": size, "hostPath": {"path": str(tmp_path)}}
    namespace.kube.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume})
    claim = {**common, "volumeName": name, "resources": {"requests": size}}
    namespace.create("persistentvolumeclaims", "disk", spec=claim)
    container = {"volumeMounts": [{"name": "disk", "mountPath": "/checkpoints"}]}
    volumes = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
    namespace.run("writer", "open('/checkpoints/1', 'w').write('x')", container=container, volumes=volumes)
    namespace.phase("writer", "Succeeded")
    assert (tmp_path / "1").read_text() == "x"


def test_environment_comes_from_every_source(namespace: Namespace) -> None:
    namespace.create("configmaps", "settings", data={"COLOUR": "blue", "SIZE": "7"})
    namespace.create("secrets", "password", data={"word": base64.b64encode(b"hush").decode()})

    def field(name: str, path: str) -> dict:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    env = [
        field("NODE", "spec.nodeName"),
        field("IP", "status.podIP"),
        field("APP", "metadata.labels['app']"),
        field("NOTE", "metadata.annotations['example.com/note']"),
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "password", "key": "word"}}},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "ALL", "value": "$(APP)-$(COLOUR)-$$(APP)-$(UNKNOWN)"},
    ]
    container = {"env": env, "envFrom": [{"configMapRef": {"name": "settings"}}]}
    container["resources"] = {"limits": {"cpu": "1500m"}}
    script = "import os; e = os.environ; print(e['NODE'], e['IP'], e['NOTE'], e['WORD'], e['CPUS'], e['ALL'])"
    annotations = {"example.com/note": "seen"}
    namespace.run("reader", script, container=container, labels={"app": "x"}, annotations=annotations)
    pod = namespace.phase("reader", "Succeeded")
    expected = [pod["spec"]["nodeName"], pod["status"]["podIP"], "seen", "hush", "2"]
    assert namespace.logs("reader").split() == [*expected, "x-blue-$(APP)-$(UNKNOWN)"]


def test_a_container_waits_for_its_config_map(namespace: Namespace) -> None:
    container = {"envFrom": [{"configMapRef": {"name": "late"}}]}
    namespace.run("waits", "import os; print(os.environ['COLOUR'])", container=container)
    expected = {"reason": "CreateContainerConfigError", "message": 'configmap "late" not found'}
    namespace.kube.wait(
        namespace.path("waits"), lambda pod: pod and first_state(pod).get("waiting") == expected
    )
    namespace.create("configmaps", "late", data={"COLOUR": "green"})
    namespace.phase("waits", "Succeeded")


def test_logs_can_be_followed_cut_and_stamped(namespace: Namespace) -> None:
    script = "import time\nfor n in range(4): print('line', n, flush=True); time.sleep(0.25)"
    namespace.run("talks", script)
    namespace.phase("talks", "Running")
    followed: list[str] = []
    reader = threading.Thread(target=lambda: followed.append(namespace.logs("talks", "-f")))
    reader.start()
    reader.join(15)
    assert followed == ["line 0\nline 1\nline 2\nline 3\n"]
    namespace.phase("talks", "Succeeded")
    assert namespace.logs("talks", "--tail=1") == "line 3\n"
    stamp, _, text = namespace.logs("talks", "--tail=1", "--timestamps").partition(" ")
    assert text == "line 3\n"
    assert stamp.endswith("Z")
    assert namespace.logs("talks", "--limit-bytes=4") == "line"


def test_deletion_gives_the_grace_period_and_then_kills(any_namespace: Namespace) -> None:
    script = "import signal, time; signal.signal(15, lambda *_: print('asked', flush=True)); print(1, flush=True)\n"
    any_namespace.run("stubborn", script + "while True: time.sleep(1)", terminationGracePeriodSeconds=1)
    any_namespace.run("polite", "import time; time.sleep(100)", terminationGracePeriodSeconds=30)
    any_namespace.kube.wait(
        any_namespace.path("stubborn"),
        lambda pod: pod and phase_of(pod) == "Running" and any_namespace.logs("stubborn"),
    )
    any_namespace.phase("polite", "Running")
    began = time.monotonic()
    any_namespace.delete("stubborn")
    any_namespace.delete("polite")
    any_namespace.gone("polite", seconds=5)
    any_namespace.gone("stubborn", seconds=5)
    assert time.monotonic() - began > 0.9


def test_a_deadline_ends_the_pod(namespace: Namespace) -> None:
    namespace.run(
        "slow", "import time; time.sleep(100)", activeDeadlineSeconds=1, terminationGracePeriodSeconds=1
    )
    assert namespace.phase("slow", "Failed")["status"]["reason"] == "DeadlineExceeded"


def test_a_pod_that_no_scheduler_placed_is_refused_when_it_does_not_fit(namespace: Namespace) -> None:
    container = {"resources": {"limits": {"kronos.dev/accelerator": "5"}}}
    namespace.run("greedy", "", container=container, nodeName="rack-a-0")
    status = namespace.phase("greedy", "Failed")["status"]
    assert status["reason"] == "OutOfkronos.dev/accelerator"
    assert "requested: 5, used: 0, capacity: 4" in status["message"]


def test_a_readiness_probe_decides_when_a_pod_is_ready(namespace: Namespace) -> None:
    script = (
        "import time, os, http.server as h; time.sleep(0.3)\n"
        "h.HTTPServer((os.environ['IP'], 8123), h.SimpleHTTPRequestHandler).serve_forever()"
    )
    probe = {"httpGet": {"path": "/", "port": 8123}, "periodSeconds": 1}
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    namespace.run("server", script, container={"readinessProbe": probe, "env": env})
    assert condition(namespace.phase("server", "Running"), "Ready") == "False"
    namespace.kube.wait(namespace.path("server"), lambda pod: pod and condition(pod, "Ready") == "True")


def test_pods_behind_a_headless_service_find_each_other_by_name(any_namespace: Namespace) -> None:
    any_namespace.create("services", "gang", spec={"clusterIP": "None", "selector": {"gang": "g"}})
    listen = (
        "import socket, sys\n"
        "server = socket.create_server((sys.argv[1], 7070)); server.settimeout(20)\n"
        "print(server.accept()[0].recv(9).decode())"
    )
    call = (
        "import socket, sys, time\n"
        "for _ in range(200):\n"
        "    try: socket.create_connection((sys.argv[1], 7070), timeout=5).sendall(b'hello'); break\n"
        "    except OSError: time.sleep(0.1)\n"
        "else: raise SystemExit('cannot reach ' + sys.argv[1])"
    )

    def member(name: str, script: str, target: str) -> None:
        container = {"command": ["python", "-c", script, target]}
        spec = {"hostname": name, "subdomain": "gang", "labels": {"gang": "g"}}
        any_namespace.run(name, "", container=container, **spec)

    member("caller", call, "listener.gang")
    member("listener", listen, f"listener.gang.{any_namespace.name}.svc.cluster.local")
    any_namespace.phase("caller", "Succeeded", seconds=25)
    any_namespace.phase("listener", "Succeeded", seconds=25)
    assert any_namespace.logs("listener") == "hello\n"


def test_host_names_resolve_inside_a_pod(namespace: Namespace) -> None:
    namespace.create("services", "gang", spec={"clusterIP": "None", "selector": {"gang": "g"}})
    script = (
        "import socket; print(socket.gethostname()); ip = socket.gethostbyname(socket.gethostname())\n"
        "print({socket.gethostbyname(n) for n in ('one.gang', 'gang', 'one.gang.%s.svc')} == {ip})"
    )
    spec = {"hostname": "one", "subdomain": "gang", "labels": {"gang": "g"}}
    namespace.run("one", "import time; time.sleep(0.2)\n" + script % namespace.name, **spec)
    namespace.phase("one", "Succeeded", "Failed")
    assert namespace.logs("one").split() == ["one", "True"]


def test_exec_is_refused_with_a_clear_sentence(namespace: Namespace) -> None:
    namespace.run("sleeper", "import time; time.sleep(100)")
    namespace.phase("sleeper", "Running")
    with pytest.raises(Exception, match="exec does not work on Kronos's local nodes"):
        namespace.cluster.kubectl("exec", "-n", namespace.name, "sleeper", "--", "true")


def test_a_pod_uses_the_api_with_its_service_account(namespace: Namespace) -> None:
    script = (
        "import os, ssl, urllib.request, urllib.error\n"
        "d = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "url = 'https://%s:%s/api/v1/nodes' % (os.environ['KUBERNETES_SERVICE_HOST'], os.environ['KUBERNETES_SERVICE_PORT'])\n"
        "request = urllib.request.Request(url, headers={'Authorization': 'Bearer ' + open(d + 'token').read()})\n"
        "try: urllib.request.urlopen(request, context=ssl.create_default_context(cafile=d + 'ca.crt'))\n"
        "except urllib.error.HTTPError as error: print(error.read().decode())"
    )
    namespace.run("client", script)
    namespace.phase("client", "Succeeded", "Failed")
    assert f"system:serviceaccount:{namespace.name}:default" in namespace.logs("client")


def test_processes_that_a_container_leaves_behind_are_killed(
    any_namespace: Namespace, tmp_path: Path
) -> None:
    # The heart of a daemon beats into a file of the host, for as long as it lives.
    daemon = "import time, pathlib\nwhile True: pathlib.Path('/beat/at').write_text(str(time.time())); time.sleep(.02)"
    script = (
        "import os, sys, time, subprocess\n"
        "subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=-3, stderr=-3)\n"
        "time.sleep(0.4)"
    )
    container = {
        "command": ["python", "-c", script, "python", "-c", daemon],
        "volumeMounts": [{"name": "beat", "mountPath": "/beat"}],
    }
    volumes = [{"name": "beat", "hostPath": {"path": str(tmp_path)}}]
    any_namespace.run("leaves", "", container=container, volumes=volumes)
    any_namespace.phase("leaves", "Succeeded")
    beat = (tmp_path / "at").read_text()
    time.sleep(0.2)
    assert (tmp_path / "at").read_text() == beat
