"""Rules of recurrent layers: sequences are independent, and all dims within one stay whole."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.rules.declare import Call, Declared, rule


def _whole(call: Call, first: int) -> Iterator[str]:
    """Yield the terms of weights and biases, from operand `first` on."""
    for place in range(first, len(call.operands)):
        yield " ".join(f"w{place}_{dim}!" for dim in range(len(call.shapes[place])))


@rule("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def layers(call: Call) -> Declared | None:
    """Input [time, batch, in] or [batch, time, in]; states [layers, batch, hidden]."""
    states = len(call.made) - 1
    if any(len(shape) != 3 for shape in call.shapes[: 1 + states]):
        return None
    read, made = ("b t! i!", "b t! o!") if call.node.args[-1] else ("t! b i!", "t! b o!")
    before = [f"l! b h{i}!" for i in range(states)]
    return Declared(
        f"{', '.join([read, *before, *_whole(call, 1 + states)])} -> {', '.join([made, *before])}"
    )


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cells(call: Call) -> Declared | None:
    """One step."""
    states = 2 if "lstm" in call.node.op else 1
    if any(len(shape) != 2 for shape in call.shapes[: 1 + states]):
        return None
    before = ["b h!"] * states
    made = ", ".join(before[: len(call.made)])
    return Declared(f"{', '.join(['b i!', *before, *_whole(call, 1 + states)])} -> {made}")
