"""Shell scripts are parsed, never executed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.configs.meant import holds, job, meant
from vramplan.configs import shell
from vramplan.configs.texts import started_by
from vramplan.errors import InputError


def run(text: str) -> list[str]:
    return [argument.text for argument in shell.read(text).arguments]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("A=1\npython x.py --a $A", ["--a", "1"]),
        ("A='b c'\npython x.py $A \"$A\"", ["b", "c", "b c"]),
        ("A=${B:-d}\npython x.py --a ${A}", ["--a", "d"]),
        ("B=2\nA=${B:-d}\npython x.py --a ${A}", ["--a", "2"]),
        ("B=2\npython x.py --a ${B:?is needed} ${B?}", ["--a", "2", "2"]),
        ("B=${B:-}\npython x.py --a ${B:?is needed}", ["--a", "\ue000B\ue001"]),
        (': "${A:=4}"\n: "${A:=5}"\npython x.py --a $A', ["--a", "4"]),
        ("B=2\n: ${A:=$B} ${S:=other.py}\npython x.py --a $A", ["--a", "2"]),
        ("python x.py ${A:---a} ${B=c} $B", ["--a", "c", "c"]),
        ("A=(1 '2 3')\nA+=(4)\npython x.py ${A[@]}", ["1", "2", "3", "4"]),
        ('IFS=, read -r A B <<< "1,2,3"\npython x.py $A --b $B', ["1", "--b", "2,3"]),
        ("read -r A B <<< '1  2'\npython x.py $A --b $B", ["1", "--b", "2"]),
        ('read -r A <<< "$B"\npython x.py --a $A', ["--a", "\ue000A\ue001"]),
        ('for S in "4,2" "8,1"; do\nIFS=, read A B <<< "$S"\npython x.py $A $B\ndone', ["4", "2"]),
        ('python x.py --a 1 <<< "text"\n', ["--a", "1"]),
        ('C="python x.py --a 1"\nsrun bash -c "$C"', ["--a", "1"]),
        ("A=(1 '2 3')\npython x.py \"${A[@]}\"", ["1", "2 3"]),
        ('A="1"\nA+=" 2"\npython x.py $A', ["1", "2"]),
        ("N=3\npython x.py $((N * (2 + 1)))", ["9"]),
        ("N=3\npython x.py $[$N * 2] $[8*$[N]]", ["6", "24"]),
        ("python x.py $[8*$[WORLD]]", ["\ue000WORLD\ue001"]),
        ('A=(x y)\nfor i in "${!A[@]}"; do\npython x.py ${A[$i]} $i\ndone', ["x", "0"]),
        ("# python y.py --b\npython x.py --a # --c", ["--a"]),
        ("python x.py --a \\\n  --b", ["--a", "--b"]),
        ("A=1\nif [ $A -eq 1 ]; then B=yes; else B=no; fi\npython x.py $B", ["yes"]),
        ("A=2\nif [ $A -eq 1 ]; then\nB=one\nelif [[ $A == 2 ]]; then\nB=two\nfi\npython x.py $B", ["two"]),
        ('if [ -z "$NOT_SET" ]; then B=empty; fi\npython x.py $B', ["empty"]),
        ("A=b\ncase $A in\na) B=1;;\nb|c) B=2;;\n*) B=3;;\nesac\npython x.py $B", ["2"]),
        ("python x.py '#not a comment' \"a'b\"", ["#not a comment", "a'b"]),
        ('A="--a `b <<< "c; 1/10"` --d 2"\npython x.py $A', ["--a", '\ue000`b <<< "c; 1/10"`\ue001', "--d", "2"]),
        ("python x.py --a 1 2>&1 > own.log --b 2 | tee log", ["--a", "1", "--b", "2"]),
        ("A='python x.py --a 1 &>> own.log'\neval $A", ["--a", "1"]),
        ('python x.py $([ "$A" != 1 ] && echo "--a" || echo --b) --c', ["--a", "--c"]),
        ('A=1\npython x.py $([ "$A" != 1 ] && echo "--a") --c', ["--c"]),
        (
            "f() {\n  local a=$1\n  python x.py --a $a --b $(( 8 / $2 )) $3\n}\nf 4 2",
            ["--a", "4", "--b", "4", "\ue0003\ue001"],
        ),
        ("f() { python x.py --a \"$@\"; }\nf 4 '2 3'", ["--a", "4", "2 3"]),
        ("N=2\nif (( N > 1 && N < 4 )); then A=1; fi\npython x.py --a $A", ["--a", "1"]),
        ("N=2\nif ((N >= 4)) || (( !N )); then A=1; else A=2; fi\npython x.py --a $A", ["--a", "2"]),
        ("if (( N == 0 )); then A=1; fi\npython x.py --a $A", ["--a", "1"]),
        ("for ((i=0; i<3; i++)); do A=4; done\npython x.py --a $A", ["--a", "4"]),
        ("N=2\nif [ $N = 2 ] && [ $N -gt 4 ]; then A=1; else A=2; fi\npython x.py --a $A", ["--a", "2"]),
        ("N=2\nif [ $N = 4 ] ||\n   [ $N = 2 ]; then A=1; else A=2; fi\npython x.py --a $A", ["--a", "1"]),
        ('N=2\n[ $N -gt 4 ] && ARGS="--a"\npython x.py --b $ARGS', ["--b", "\ue000ARGS\ue001"]),
        ('N=2\n[[ $N -gt 1 ]] && ARGS="--a"\npython x.py --b $ARGS', ["--b", "--a"]),
        ("N=2\n(( N > 4 )) && A=1 || A=2\npython x.py --a $A", ["--a", "2"]),
        ("N=2\ntest $N = 2 || A=1\npython x.py --a ${A:-3}", ["--a", "3"]),
        ('[ "$N" = 1 ] && { A=1; B=1; } || { A=2; B=2; }\npython x.py $A $B', ["2", "2"]),
        ("N=1\n[ $N = 1 ] && { A=1; B=1; } || { A=2; B=2; }\npython x.py $A $B", ["1", "1"]),
        ("N=1\ncase $N in\n1) [ $N = 2 ] && A=1 || A=2 ;;\nesac\npython x.py --a $A", ["--a", "2"]),
        ("[ -z $N ] && N=4 | cat && M=2\npython x.py $N $M", ["4", "2"]),
        ("N=1\n[ -z $N ] && N=4 | cat && N=2\npython x.py $N", ["1"]),
        ("[ -f own.sh ] && A=1\npython x.py --a $A", ["--a", "1"]),  # nobody looks
        ("[ 1 = 1 ] && python x.py --a 1", ["--a", "1"]),
        (
            "B='--a 1\n   --b $C'\npython x.py $(echo \"$B\" | tr '\\n' ' ' | sed 's/  \\+/ /g')",
            ["--a", "1", "--b", "$C"],
        ),
        ("f() { python x.py --a $1; }\nf 1\nf 2", ["--a", "1"]),  # the first, which a note tells
        ('f() { local A=$1; shift; python x.py --a $A "$@"; }\nf 1 --b 2', ["--a", "1", "--b", "2"]),
        ("f() { shift 2\npython x.py --a $1 ${2:-3}; }\nf 7 8 9", ["--a", "9", "3"]),
        ('f() { python x.py --a $1; }\nif [ -n "$B" ]; then f 1; fi', ["--a", "\ue0001\ue001"]),
    ],
)
def test_what_the_shell_would_hand_on(text: str, arguments: list[str]) -> None:
    assert run(text) == arguments


@pytest.mark.parametrize("text", ["python x.py --a $1", "python x.py --a $(hostname)", "python x.py --a $RANDOM"])
def test_what_only_the_caller_knows_keeps_its_name(text: str) -> None:
    assert shell.unknowns(run(text)[1])


INNER = "SIZE=$1\nA=''\nif [ $SIZE = 7B ]; then A='--layers 32'; fi\npython x.py $A --length ${2} --name $@"


def test_a_script_that_is_called_with_arguments() -> None:
    script = shell.read("bash sub/inner.sh 7B \\\n  4096", {"inner.sh": INNER}.get)
    words = ["--layers", "32", "--length", "4096", "--name", "7B", "4096"]
    assert [argument.text for argument in script.arguments] == words
    assert {argument.line for argument in script.arguments if argument.text == "--length"} == {1}


@pytest.mark.parametrize(
    "inner", [f"while [ $# -gt 0 ]; do shift; done\n{INNER}", f"exec bash inner.sh $1 $2\n{INNER}"]
)
def test_a_script_that_reads_its_arguments_another_way_is_left_alone(inner: str) -> None:
    shell.read("bash inner.sh 7B 4096", {"inner.sh": inner}.get)


LOOP = """
LAYERS=2 BATCH=1
while [[ $# -gt 0 ]]; do
  case "$1" in
    --layers=*) LAYERS="${1#*=}"; shift ;;
    -b|--batch) BATCH=$2
                shift 2 ;;
    --) shift; break ;;
    *) shift ;;
  esac
done
if [ $# -ne 1 ]; then BATCH=77; fi
python x.py --layers $LAYERS --batch $BATCH --rest "$@"
"""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("bash inner.sh --layers=7 --other x -b 5 -- 9", "--layers 7 --batch 5 --rest 9"),
        ("bash inner.sh --batch 5 --layers=7", "--layers 7 --batch 77 --rest"),
        ("mpirun -np 4 inner.sh -b 3 -- 1", "--layers 2 --batch 3 --rest 1"),
    ],
)
def test_a_script_that_goes_through_its_arguments_in_a_loop(call: str, words: str) -> None:
    script = shell.read(call, {"inner.sh": LOOP}.get)
    assert [argument.text for argument in script.arguments] == words.split()
    assert [word.text for word in script.launcher][:2] == (["mpirun", "-np"] if "mpirun" in call else ["python"])


def test_a_loop_over_all_arguments_of_a_call() -> None:
    loop = 'for WORD in "$@"; do\n  if [[ $WORD == --* ]]; then A+=" $WORD"; fi\ndone\n'
    inner = f'A="" LAST=$1\n{loop}python x.py $A $LAST\n'
    script = shell.read("bash inner.sh 1 --b 2 --c", {"inner.sh": inner}.get)
    assert [argument.text for argument in script.arguments] == ["--b", "--c", "1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('read -p "Go on? (y/n) " A\nif [[ "$A" =~ ^[Yy]$ ]]; then B=1; else B=2; fi\npython x.py --b $B', "--b 1"),
        ("N=12\nif [[ $N =~ ^[0-9]+$ ]]; then B=$N; fi\npython x.py --b ${B:-0}", "--b 12"),
        ("N=x\nif [[ $N =~ ^[0-9 ]]; then B=$N; fi\npython x.py --b ${B:-0}", "--b 0"),  # no expression
        (
            'L=("a b.yaml" "c d")\nfor X in "${L[@]}"; do\n  read -r M C <<< "$X"\n  python x.py --m $M --c $C\ndone',
            "--m a --c b.yaml",
        ),
        ('L="a b"\nfor X in $L; do\n  python x.py --m $X --c 1\ndone', "--m a --c 1"),
    ],
)
def test_a_question_is_answered_and_items_of_a_loop_keep_their_blanks(text: str, words: str) -> None:
    assert run(text) == words.split()


def test_an_unknown_of_several_words_stays_one() -> None:
    assert len(run("python x.py --a $(hostname -i | head -n 1):$PORT --b")) == 3


def test_nothing_is_executed(tmp_path: object) -> None:
    text = f"touch {tmp_path}/made\nA=$(touch {tmp_path}/made)\npython x.py $A\n"
    shell.read(text)
    from pathlib import Path

    assert list(Path(str(tmp_path)).iterdir()) == []


@given(st.text(alphabet=st.sampled_from("ab$(){}[]'\"`\\ \n;|&<>#=+-if1"), max_size=80))
def test_any_text_is_read_to_its_end(text: str) -> None:
    shell.read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5 * 8", 40), ("2**10", 1024), ("(1 + 2) // 2", 1), ("x + 1", None), ("2**100000", None), ("1/0", None)],
)
def test_arithmetic_is_of_numbers_alone(text: str, value: int | None) -> None:
    assert shell.arithmetic(text) == value


@pytest.mark.parametrize(
    ("head", "nodes", "gpus"),
    [
        ("#SBATCH --nodes=24\n#SBATCH --gres=gpu:8  # all\n", "24", "8"),
        ("#SBATCH -N 2\n\n# more\n#SBATCH --gpus-per-node a100:4\n", "2", "4"),
        ("#SBATCH --nodes=2-4\n#SBATCH --gres=nvme:1\n", None, None),
        ("set -e\n#SBATCH --nodes=24\n", None, None),  # behind a command it is a comment alone
    ],
)
def test_the_head_of_a_script_tells_what_slurm_sets(head: str, nodes: str | None, gpus: str | None) -> None:
    text = f"#!/bin/bash\n{head}torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE train.py --a 1\n"
    words = [word.text for word in shell.read(text).launcher]
    found = [words[words.index(option) + 1] for option in ("--nnodes", "--nproc_per_node")]
    assert [None if shell.unknowns(word) else word for word in found] == [nodes, gpus]


def test_the_shell_that_srun_starts_knows_exported_variables() -> None:
    text = """
        export LAUNCHER="python -u -m torch.distributed.launch --nproc_per_node 4 --nnodes 2"
        export CMD="`pwd`/pretrain_gpt.py --num-layers 2 --fp16"
        srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee out.log
    """
    script = shell.read(text)
    assert script.program is not None
    assert script.program.text.endswith("pretrain_gpt.py")
    assert [word.text for word in script.arguments] == ["--num-layers", "2", "--fp16"]
    assert "--nproc_per_node" in [word.text for word in script.launcher]


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        ("srun --nodes=2 --gpus-per-node=4 --cpus-per-task 8 torchrun --nnodes 2 --nproc_per_node 4 train.py", 8),
        ("srun --nodes=2 --gpus-per-node=a100:4 --exclusive deepspeed train.py", 8),
        ("srun --ntasks-per-node=4 --gpus-per-node=8 --mem=0 python train.py", 4),
        ("srun --gpus-per-node=$OWN deepspeed train.py", None),
        ("srun --partition own python train.py", None),
    ],
)
def test_what_srun_hands_out_are_the_gpus(command: str, devices: int | None) -> None:
    words = "--model_name_or_path gpt2 --per_device_train_batch_size 2 --output_dir out --bf16 True"
    assert job(f"{command} {words}\n", "run.sh").get("parallel.data") == devices


def test_a_command_whose_output_a_variable_keeps_trains_where_no_other_does() -> None:
    text = """
        COMMON=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32)
        PORT=$(python free_port.py)
        BATCH="--micro-batch-size 3 --global-batch-size 6"
        output=$(torchrun --nproc_per_node=2 pretrain_gpt.py "${COMMON[@]}" $BATCH 2>&1)
        echo "$output"
    """
    found = job(text, "own.sh")
    holds(found, sequence_length=32, micro_batch_size=3, parallel__data=2)
    again = text.replace("echo", "torchrun pretrain_gpt.py ${COMMON[@]} --micro-batch-size 5 --global-batch-size 5 #")
    holds(job(again, "own.sh"), micro_batch_size=5)


def test_a_script_that_sets_up_the_shell_is_not_asked_for() -> None:
    run = "train.py --model_name_or_path gpt2 --max_seq_length 64 --bf16 True --output_dir $OUT\n"
    text = f"source /opt/own/bin/activate\naccelerate launch --num_processes 2 --multi_gpu {run}"
    assert not shell.read(text).notes
    assert shell.read(text.replace("bin/activate", "own.sh")).notes == ["it sources own.sh, which is not here"]
    assert not shell.read(text.replace("/opt/own/bin/activate", "~/.bashrc")).notes


@pytest.mark.parametrize(
    ("text", "handed"),
    [
        ("R=( 8 16 32 )\npython a.py ${R[1]}", ["16"]),
        ("R=( 8 16 32 )\nAT=2\npython a.py ${R[AT]} ${R[$AT - 1]}", ["32", "16"]),
        ("R=( 8 16 32 )\npython a.py ${R[-1]} ${R[@]}", ["32", "8", "16", "32"]),
        ("DATA=<path to data>/own.json\npython a.py $DATA --n 2", ["<path", "to", "data>/own.json", "--n", "2"]),
        ("SRC=<ROOT>/x\npython a.py $SRC < in.txt", ["<ROOT>/x"]),
    ],
)
def test_an_element_of_an_array_and_a_name_that_is_to_be_filled_in(text: str, handed: list[str]) -> None:
    assert run(text) == handed


def test_an_element_that_nobody_knows_stays_unknown() -> None:
    assert shell.unknowns(run("R=( 8 16 )\npython a.py ${R[$PLACE]}")[0])


def test_a_module_behind_the_number_of_processes_is_no_part_of_it() -> None:
    script = "torchrun --nproc_per_node 8 -m own.run --model_name_or_path gpt2 --block_size 64 --output_dir o --bf16\n"
    found = meant(script, "run.sh")
    assert found.job["parallel"]["data"] == 8
    assert "parallel.data" in meant(f"GPUS_PER_NODE=8\n{script.replace('--n', '--nnodes $N --n', 1)}", "run.sh").open


def test_lines_that_end_as_on_windows_are_lines() -> None:
    text = "SIZE=4\r\ntorchrun a.py \\\r\n  --model_name_or_path gpt2 \\\r\n  --n $SIZE\r\n"
    assert run(text) == ["--model_name_or_path", "gpt2", "--n", "4"]


@pytest.mark.parametrize(
    ("text", "handed"),
    [
        ("L=0,1,2\npython a.py $(echo $L | awk -F',' '{print NF}')", ["3"]),
        ("L=0,1\npython a.py $(echo ${L} | tr ',' '\\n' | wc -l)", ["2"]),
        ("if command -v nvidia-smi &>/dev/null; then A=1; else A=2; fi\npython a.py $A", ["1"]),
    ],
)
def test_how_scripts_count_their_devices(text: str, handed: list[str]) -> None:
    assert run(text) == handed


def test_a_word_for_all_gpus_is_no_number() -> None:
    script = (
        "torchrun --nproc_per_node gpu run_clm.py --model_name_or_path gpt2 --block_size 64 --output_dir o --bf16\n"
    )
    assert "parallel.data" in meant(script, "run.sh").open


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("$(expr $TOTAL / $GPUS / 2)", "16"),
        ('$(echo "$TOTAL / $GPUS" | bc)', "32"),
        ('$(basename "$MODEL")', "Own-7B"),
        ("$(basename a/b.json .json)", "b"),
        ("$(dirname $MODEL)", "org"),
        ("$(echo $MODEL | cut -d '/' -f2)", "Own-7B"),
        ("$(echo $MODEL | cut -f 1 -d /)", "org"),
        ("$(echo $MODEL | awk -F'/' '{print $NF}')", "Own-7B"),
        ('$(echo "$MODEL" | tr "/" "_" | tr -d "-")', "org_Own7B"),
        ("${MODEL##*/}", "Own-7B"),
        ("${MODEL%%/*}", "org"),
        ("${MODEL#o*g}", "/Own-7B"),
        ("${MODEL%B}", "org/Own-7"),
        ("${MODEL//-/_}", "org/Own_7B"),
        ("${MODEL,,}", "org/own-7b"),
    ],
)
def test_small_commands_print_what_they_are_given(expression: str, result: str) -> None:
    found = shell.read(f"MODEL=org/Own-7B\nTOTAL=128\nGPUS=4\ntorchrun train.py --value {expression} --other 1\n")
    assert [item.text for item in found.arguments] == ["--value", result, "--other", "1"]


@pytest.mark.parametrize(
    "expression",
    ["$(whoami)", "$(expr $WHO + 1)", "$(echo $MODEL | sed s/a/b/)", "$(basename $MODEL; ls)", "$(echo 1e400 | bc)"],
)
def test_other_commands_are_known_to_the_caller_alone(expression: str) -> None:
    found = shell.read(f"MODEL=org/Own-7B\ntorchrun train.py --value {expression} --other 1\n")
    assert len(shell.unknowns(found.arguments[1].text)) == 1


@pytest.mark.parametrize(
    "before",
    [
        "apptainer run --nv --writable-tmpfs -B /home:/home --env A=1 --pwd /code own.sif ",
        "docker run --rm --gpus all --shm-size 64g -v /data:/data own:latest ",
        "srun --nodes 1 singularity exec --nv own.sif ",
    ],
)
def test_options_of_a_container_are_none_of_the_launcher(before: str) -> None:
    command = "torchrun --nproc_per_node 4 train.py --model_name_or_path gpt2 --max_seq_length 128 --bf16 True"
    found = meant(f"{before}{command}\n", "run.sh")
    assert found.job["parallel"]["data"] == 4
    assert not found.unmodelled


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("  # how long it is\n  --max_seq_length 128 \\\n  --bf16 True\n", 3),
        ("  --bf16 True\n  --max_seq_length 128\n", 3),  # without a backslash before it
    ],
)
def test_options_that_a_comment_or_the_end_of_a_line_cuts_off_are_an_error(lines: str, line: int) -> None:
    with pytest.raises(InputError, match="begins a command of its own") as caught:
        meant("torchrun train.py --model_name_or_path gpt2 \\\n" + lines, "run.sh")
    (problem,) = caught.value.problems
    assert (problem.key, problem.line) == ("--max_seq_length", line)


@pytest.mark.parametrize("start", ["swift sft --model Qwen/Qwen2.5-0.5B", "litgpt pretrain pythia-14m"])
def test_a_blank_behind_a_backslash_ends_a_command(start: str) -> None:
    with pytest.raises(InputError, match="as do 1 more: that of line 1 ends before it") as caught:
        started_by(f"{start} --seed 1 \\  \n  --max_length 512 \\  \n  --bf16 True\n", "run.sh")
    assert [(one.key, one.line) for one in caught.value.problems] == [("--max_length", 2)]


def test_options_of_a_case_and_of_a_helper_are_none_that_are_cut_off() -> None:
    text = 'while [ $# -gt 0 ]; do case "$1" in --a|--b) A=1;; --c) A=2;; esac; shift; done\n'
    assert not shell.read(text + "python x.py --a 1\npython plot.py\n  --b 2\n").cut_off


@pytest.mark.parametrize(
    ("script", "decides"),
    [
        ("if [ $NODES -le 4 ]; then\nTP=2\nelse\nTP=4\nfi\nARGS=(--b $TP)", {("TP", "NODES")}),
        ('if [ $NODES -le 4 ]; then : "${TP:=2}"; fi\nARGS="--b $TP"', {("TP", "NODES")}),
        ("case $MODE in\nfp16) P=--fp16;;\n*) P=--bf16;;\nesac\nARGS=$P", {("P", "MODE")}),
        ("if [ -z $TP ]; then TP=2; fi\nARGS=(--b $TP)", set()),  # asks whether it is set
        ("NODES=2\nif [ $NODES -le 4 ]; then TP=2; fi\nARGS=(--b $TP)", set()),
        ("if [ $RANK == 0 ]; then LOG=a; fi\nARGS=(--b 1)", set()),  # the command takes nothing of it
    ],
)
def test_a_branch_whose_test_nothing_decides_is_told(script: str, decides: set[tuple[str, str]]) -> None:
    assert shell.read(f"{script}\npython x.py ${{ARGS[@]}}\n").supposed == decides


def test_what_a_branch_decides_is_a_note() -> None:
    text = "if [ $NODES -le 4 ]; then B=2; else B=4; fi\npython train.py --model_name_or_path gpt2 --max_seq_length 64"
    found = meant(f"{text} --per_device_train_batch_size $B --bf16 True\n", "run.sh")
    assert "nothing sets $NODES, which decides $B: the branch without it is read" in found.notes
