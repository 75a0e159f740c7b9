"""Vectors of 16 float32 numbers or words in LLVM's instructions, and functions of them.

This is Python that runs while numba compiles. Where a machine's registers are narrower than 16
lanes, LLVM splits them.
"""

import math
from typing import Any

from llvmlite import ir
from numba.core import cgutils

# llvmlite tells nothing of its types.
Builder = Value = Any

LANES = 16
F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VEC, WORDS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


def splat(builder: Builder, scalar: Value, kind: ir.VectorType = VEC) -> Value:
    """The same number in every lane."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


class Lanes:
    """A vector of floats or of 32-bit words, with the operators of Python."""

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder, self.value = builder, value

    @property
    def is_float(self) -> bool:
        """Floats, or words."""
        return self.value.type == VEC

    def _other(self, other: Any) -> Value:
        if isinstance(other, Lanes):
            return other.value
        if self.is_float:
            return ir.Constant(VEC, [float(other)] * LANES)
        return ir.Constant(WORDS, [int(other)] * LANES)

    def _by(self, name: str, other: Any) -> "Lanes":
        name = f"f{name}" if self.is_float and name in ("add", "sub", "mul", "div") else name
        return Lanes(self.builder, getattr(self.builder, name)(self.value, self._other(other)))

    def __add__(self, other: Any) -> "Lanes":
        return self._by("add", other)

    def __sub__(self, other: Any) -> "Lanes":
        return self._by("sub", other)

    def __mul__(self, other: Any) -> "Lanes":
        return self._by("mul", other)

    def __truediv__(self, other: Any) -> "Lanes":
        return self._by("div", other)

    def __xor__(self, other: Any) -> "Lanes":
        return self._by("xor", other)

    def __or__(self, other: Any) -> "Lanes":
        return self._by("or_", other)

    def __and__(self, other: Any) -> "Lanes":
        return self._by("and_", other)

    def __lshift__(self, bits: int) -> "Lanes":
        return self._by("shl", bits)

    def __rshift__(self, bits: int) -> "Lanes":
        return self._by("lshr", bits)

    def below(self, other: Any) -> "Lanes":
        """Is each lane less than another?"""
        flag = self.builder.fcmp_ordered("<", self.value, self._other(other))
        return Lanes(self.builder, flag)

    def where(self, yes: "Lanes", no: "Lanes") -> "Lanes":
        """`yes` where this comparison holds, and `no` elsewhere."""
        return Lanes(self.builder, self.builder.select(self.value, yes.value, no.value))

    def as_floats(self) -> "Lanes":
        """The same bits read as floats."""
        return Lanes(self.builder, self.builder.bitcast(self.value, VEC))

    def as_words(self) -> "Lanes":
        """The same bits read as words."""
        return Lanes(self.builder, self.builder.bitcast(self.value, WORDS))

    def to_words(self) -> "Lanes":
        """Each float's whole part as a word."""
        return Lanes(self.builder, self.builder.fptosi(self.value, WORDS))

    def to_floats(self) -> "Lanes":
        """Each word, read as a signed number, as a float."""
        return Lanes(self.builder, self.builder.sitofp(self.value, VEC))

    def times_plus(self, factor: Any, term: Any) -> "Lanes":
        """This times a factor plus a term, with one rounding."""
        return self._call("llvm.fma", self._other(factor), self._other(term))

    def largest(self, other: Any) -> "Lanes":
        """The greater of two in each lane."""
        return self._call("llvm.maxnum", self._other(other))

    def least(self, other: Any) -> "Lanes":
        """The lesser of two in each lane."""
        return self._call("llvm.minnum", self._other(other))

    def floor(self) -> "Lanes":
        """Down to the next whole number."""
        return self._call("llvm.floor")

    def sqrt(self) -> "Lanes":
        """The square root."""
        return self._call("llvm.sqrt")

    def _call(self, name: str, *others: Value) -> "Lanes":
        kinds = [VEC] * (1 + len(others))
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(VEC, kinds), f"{name}.v{LANES}f32"
        )
        return Lanes(self.builder, self.builder.call(function, [self.value, *others]))


def polynomial(x: Lanes, *coefficients: float) -> Lanes:
    """Horner's rule, the highest power first."""
    total = Lanes(x.builder, ir.Constant(VEC, [coefficients[0]] * LANES))
    for coefficient in coefficients[1:]:
        total = total.times_plus(x, coefficient)
    return total


def exp(x: Lanes) -> Lanes:
    """e^x for x <= 0 to a few units in the last place; 0 below -87."""
    bounded = x.largest(-87.0)
    whole = (bounded * (1 / math.log(2)) + 0.5).floor()
    rest = whole.times_plus(-0.693359375, bounded)  # ln 2 in two parts
    rest = whole.times_plus(2.12194440e-4, rest)
    series = polynomial(rest, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
    power = ((whole.to_words() + 127) << 23).as_floats()
    zero = Lanes(x.builder, ir.Constant(VEC, [0.0] * LANES))
    return x.below(-87.0).where(zero, series * power)


def log(x: Lanes) -> Lanes:
    """The natural logarithm of a normal positive number m 2^e, by the series of atanh at m."""
    bits = x.as_words()
    # Takes the exponent so that the mantissa lies between 2/3 and 4/3.
    exponent = (bits - 0x3F2AAAAB).as_words()
    whole = Lanes(x.builder, x.builder.ashr(exponent.value, ir.Constant(WORDS, [23] * LANES)))
    mantissa = (bits - (whole << 23)).as_floats()
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = polynomial(square, 2 / 11, 2 / 9, 2 / 7, 2 / 5, 2 / 3)
    small = ratio.times_plus(2.0, ratio * square * series)
    return whole.to_floats().times_plus(math.log(2), small)


def inverse_erf(x: Lanes) -> Lanes:
    """The inverse error function on (-1, 1), by Giles's two polynomials in w = -ln(1 - x^2)."""
    w = log((x * -1.0 + 1.0) * (x + 1.0)) * -1.0
    near = polynomial(
        w - 2.5, 2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
        -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
    )  # fmt: skip
    far = polynomial(
        w.largest(0.0).sqrt() - 3.0, -0.000200214257, 0.000100950558, 0.00134934322,
        -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
    )  # fmt: skip
    return x * w.below(5.0).where(near, far)


Pair = tuple[Lanes, Lanes]
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: Pair, counter: Pair) -> Pair:
    """Threefry-2x32 with 20 rounds, the hash behind JAX's random numbers."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = counter[0] + key[0], counter[1] + key[1]
    for five in range(5):
        for bits in ROTATIONS[five % 2]:
            x = x + y
            y = ((y << bits) | (y >> (32 - bits))) ^ x
        x = x + keys[(five + 1) % 3]
        y = y + keys[(five + 2) % 3] + (five + 1)
    return x, y


def unit_interval(bits: Lanes) -> Lanes:
    """23 random bits as a number in [0, 1)."""
    return ((bits >> 9) | 0x3F800000).as_floats() - 1.0
