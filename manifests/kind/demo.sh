#!/usr/bin/env bash
# Two jobs on a cluster of kind or minikube, in containers: from images and `kubectl apply -k` to Complete.
set -euo pipefail

readonly EXIT_USAGE=2 EXIT_NO_TOOL=3 EXIT_NO_RUNTIME=4 EXIT_NAME_TAKEN=5 EXIT_NO_IMAGES=6 EXIT_NOT_COMPLETE=7
readonly LONGEST_SECONDS=1200 # from the jobs' apply to their end; images are in place by then
readonly RESOURCE=kronos.dev/accelerator SLOTS=4
readonly USAGE="usage: demo.sh [--minikube] [--name NAME] [--keep]

Makes a cluster with four nodes in two racks, builds and loads Kronos's images, installs Kronos, trains the two example
jobs to their end and deletes the cluster.

  --minikube   use minikube instead of kind
  --name NAME  name of the cluster; default: kronos-demo
  --keep       leave the cluster there, and say how to use it

Exit codes: 2 wrong arguments, 3 a program is missing, 4 no container runtime answers, 5 the name is taken, 6 the images
couldn't be built, 7 a job didn't complete."

provider=kind
name=kronos-demo
keep=no
made=no

say() {
    printf '[%4d s] %s\n' "$SECONDS" "$*"
}

give_up() { # exit code, sentence
    printf '%s\n' "$2" >&2
    exit "$1"
}

read_arguments() {
    while (($#)); do
        case $1 in
            --minikube) provider=minikube ;;
            --name)
                [[ ${2-} =~ ^[a-z][a-z0-9-]*$ ]] || give_up "$EXIT_USAGE" "--name needs a name of a-z, 0-9 and '-'"
                name=$2
                shift
                ;;
            --keep) keep=yes ;;
            -h | --help)
                printf '%s\n' "$USAGE"
                exit 0
                ;;
            *) give_up "$EXIT_USAGE" "demo.sh doesn't know $1; try --help" ;;
        esac
        shift
    done
}

check_tools() {
    local tool
    for tool in "$provider" kubectl; do
        command -v "$tool" >/dev/null || give_up "$EXIT_NO_TOOL" "$tool isn't installed, or not on PATH"
    done
    case $provider in
        kind)
            kind get clusters >/dev/null 2>&1 ||
                give_up "$EXIT_NO_RUNTIME" "kind finds no container runtime that answers; start docker or podman"
            ;;
        minikube)
            docker info >/dev/null 2>&1 ||
                give_up "$EXIT_NO_RUNTIME" "minikube is to use docker, which doesn't answer; start it"
            ;;
    esac
    if clusters | grep -qx "$name"; then
        give_up "$EXIT_NAME_TAKEN" "there is a cluster $name already; delete it, or choose another with --name"
    fi
}

clusters() {
    case $provider in
        kind) kind get clusters 2>/dev/null ;;
        minikube) minikube profile list --light --output=json 2>/dev/null | grep -o '"Name":"[^"]*"' | cut -d'"' -f4 | sort -u ;;
    esac
}

make_cluster() {
    made=yes # also when only a part of it was made
    case $provider in
        kind) kind create cluster --name "$name" --config manifests/kind/nodes.yaml --wait 5m ;;
        minikube) minikube start --profile "$name" --driver docker --nodes 5 --wait all ;;
    esac
}

clean_up() {
    local code=$?
    trap - EXIT
    if [[ $made == yes && $keep == yes ]]; then
        say "The cluster $name stays. Use it: export KUBECONFIG=$KUBECONFIG"
        case $provider in
            kind) say "Delete it: kind delete cluster --name $name" ;;
            minikube) say "Delete it: minikube delete --profile $name" ;;
        esac
        exit "$code"
    fi
    if [[ $made == yes ]]; then
        say "Deleting the cluster $name"
        case $provider in
            kind) kind delete cluster --name "$name" || true ;;
            minikube) minikube delete --profile "$name" || true ;;
        esac
    fi
    rm -rf "$work"
    exit "$code"
}

build_images() {
    local python=${KRONOS_PYTHON:-.venv/bin/python}
    PYTHONPATH=operator "$python" -m kronos.local.images >"$work/images" ||
        give_up "$EXIT_NO_IMAGES" "the images couldn't be built; see above"
}

load_images() {
    local image archive
    while IFS=$'\t' read -r image archive; do
        say "Loading $image"
        case $provider in
            kind) kind load image-archive --name "$name" "$archive" ;;
            minikube) minikube image load --profile "$name" "$archive" ;;
        esac
    done <"$work/images"
}

# The last four nodes train: two in each rack, with accelerators that are counted but aren't there.
equip_nodes() {
    local nodes node index=0 capacity
    mapfile -t nodes < <(kubectl get nodes --selector='!node-role.kubernetes.io/control-plane' -o name)
    capacity="[{\"op\": \"add\", \"path\": \"/status/capacity/${RESOURCE/\//~1}\", \"value\": \"$SLOTS\"}]"
    for node in "${nodes[@]}"; do
        kubectl label --overwrite "$node" "kronos.dev/rack=rack-$((index / 2))" >/dev/null
        kubectl patch "$node" --subresource=status --type=json --patch "$capacity" >/dev/null
        index=$((index + 1))
    done
    # The kubelet makes it allocatable when it writes its status next.
    for node in "${nodes[@]}"; do
        kubectl wait "$node" --for=jsonpath="{.status.allocatable['${RESOURCE//./\\.}']}=$SLOTS" --timeout=2m >/dev/null
    done
}

install() {
    kubectl apply -k manifests/overlays/cluster
    kubectl -n kronos-system rollout status deployment/kronos --timeout=5m ||
        { kubectl -n kronos-system describe pods && false; }
    kubectl apply -k manifests/kind/jobs
}

watch_jobs() {
    local phases phase unfinished last='' deadline=$((SECONDS + LONGEST_SECONDS))
    while ((SECONDS < deadline)); do
        phases=$(kubectl -n forge get ktj -o jsonpath='{range .items[*]}{.metadata.name}:{.status.phase} {end}')
        [[ $phases == "$last" ]] || say "$phases"
        last=$phases
        unfinished=no
        for phase in $phases; do
            case $phase in
                *:Complete) ;;
                *:Failed) return 1 ;;
                *) unfinished=yes ;;
            esac
        done
        [[ $unfinished == yes ]] || return 0
        sleep 2
    done
    return 1
}

read_arguments "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
check_tools
work=$(mktemp -d "${TMPDIR:-/tmp}/kronos-kind-XXXXXX")
export KUBECONFIG=$work/kubeconfig # the user's own stays as it is
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "Building the images"
build_images
say "Making the cluster $name with $provider"
make_cluster
load_images
say "Giving four nodes two racks and $SLOTS accelerators each"
equip_nodes
say "Installing Kronos and applying the example jobs"
install
result=0
watch_jobs || result=$EXIT_NOT_COMPLETE
kubectl -n forge get ktj -o wide
if ((result)); then
    kubectl -n forge get ktj -o jsonpath='{range .items[*]}{.metadata.name}: {.status.reason}{"\n"}{end}'
    kubectl -n kronos-system logs deployment/kronos --tail=30
    give_up "$result" "the jobs didn't both complete"
fi
say "Both jobs are Complete."
