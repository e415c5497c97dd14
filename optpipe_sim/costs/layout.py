"""How a model is spread over devices; light, as the command line has its options from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass

from ..errors import OptPipeError
from ..option_fields import option

# behind the number of a stage's layers: those that predict further tokens are there, too
MARK = "m"


def layers_and_mtp(text: str) -> tuple[int | str, ...]:
    """Read ``3,4,4m,0``: the stage of the layers that predict further tokens may have an m behind its number.

    Raises:
        OptPipeError: for anything else.
    """
    words = text.split(",")
    numbers = layer_list(",".join(word.removesuffix(MARK) for word in words))
    return tuple(
        f"{at}{MARK}" if word.endswith(MARK) else at
        for at, word in zip(numbers, words, strict=True)
    )


def layer_list(text: str) -> tuple[int, ...]:
    """Read ``3,4,4,3``.

    Raises:
        OptPipeError: for anything else.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptPipeError(f"layers: expected whole numbers, as in 3,4,4,3, got {text!r}") from None


@dataclass(frozen=True)
class Layout:
    """The parallelism of a model, and the stages of its pipeline; the fields say what each means.

    Raises:
        OptPipeError: for numbers that do not divide each other.
    """

    devices: int = option(
        MISSING,
        "GPUs of one replica of the model; the pipeline has N / (tp x cp) devices",
        metavar="N",
    )
    tp: int = option(1, "devices that share each layer's matrices", metavar="N")
    cp: int = option(1, "devices that share the sequence", metavar="N")
    ep: int = option(
        1, "devices that share the experts, among the tp x cp x dp of a stage", metavar="N"
    )
    dp: int = option(1, "replicas of the model", metavar="N")
    zero: int = option(
        0,
        "shard over the replicas: 1: optimizer states, 2: also gradients, 3: also weights",
        choices=(0, 1, 2, 3),
    )
    etp: int | None = option(
        None,
        "devices that share one expert, tp or 1; default: tp if ep divides cp x dp, else 1",
        metavar="N",
    )
    chunks: int = option(1, "stages per device, as Megatron-LM's virtual stages", metavar="N")
    placement: str | Sequence[int] = option(
        "loop",
        "of the chunks: loop (stage s on device s mod p) or vee (there and back)",
        choices=("loop", "vee"),
    )
    layers: Sequence[int | str] | None = option(
        None,
        "layers per stage; default: balanced. An m behind a number: layers for further tokens are there (default:"
        " beside the head)",
        metavar="A,B,...",
        read=layers_and_mtp,
    )

    def __post_init__(self) -> None:
        for key in ("devices", "tp", "cp", "ep", "dp", "chunks"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**20:
                raise OptPipeError(
                    f"{key}: must be a whole number from 1 to 1048576, got {value!r}"
                )
        if self.zero not in (0, 1, 2, 3):
            raise OptPipeError(f"zero: expected 0, 1, 2 or 3, got {self.zero!r}")
        if self.devices % (self.tp * self.cp):
            raise OptPipeError(
                f"devices: {self.devices} are not a multiple of tp {self.tp} x cp {self.cp};"
                " give the devices of one replica, stages included"
            )
        if (self.tp * self.cp * self.dp) % self.ep:
            raise OptPipeError(
                f"ep: {self.ep} does not divide tp {self.tp} x cp {self.cp} x dp {self.dp},"
                " the devices that hold one stage"
            )
        if self.etp is not None and self.etp not in (1, self.tp):
            raise OptPipeError(f"etp: expected 1 or tp, {self.tp}, got {self.etp!r}")
        if (self.tp * self.cp * self.dp) % (self.ep * self.expert_tp):
            raise OptPipeError(
                f"etp: ep {self.ep} x etp {self.expert_tp} does not divide tp {self.tp} x cp {self.cp}"
                f" x dp {self.dp}, the devices that hold one stage"
            )

    @property
    def pipeline(self) -> int:
        """Devices along the pipeline, the profile's p."""
        return self.devices // (self.tp * self.cp)

    @property
    def expert_tp(self) -> int:
        """Devices that share one expert."""
        if self.etp is not None:
            return self.etp
        return self.tp if (self.cp * self.dp) % self.ep == 0 else 1

    @property
    def copies(self) -> int:
        """Devices that hold the same weights outside the experts."""
        return self.dp * self.cp

    @property
    def expert_copies(self) -> int:
        """Devices that hold the same expert weights."""
        return max(1, self.tp * self.cp * self.dp // (self.ep * self.expert_tp))
