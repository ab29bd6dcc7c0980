#!/usr/bin/env python3
"""Derives the polynomial coefficients and split constants of engine/numerics.h and prints them as C literals.

Weighted least squares in mpmath. Coefficients are rounded to their format one after the other, lowest power first, and
the rest is fitted again, so that rounding one coefficient is repaired by those after it. Needs mpmath only.
"""
from mpmath import mp, mpf, matrix, lu_solve, exp, log, sin, cos, pi, sqrt, floor, ldexp, frexp, nstr

mp.dps = 80


def round_to(x, bits):
    if x == 0:
        return x
    m, e = frexp(x)
    s = ldexp(m, bits)
    n = floor(s)
    d = s - n
    if d > mpf(1) / 2 or (d == mpf(1) / 2 and int(n) % 2):
        n += 1
    return ldexp(n, e - bits)


def least_squares(f, powers, lo, hi, weight):
    """Weighted least squares on Chebyshev nodes: within a factor of about two of minimax, and without its exchange,
    which breaks down once low coefficients are fixed and all remaining powers vanish together at 0."""
    nodes = [(lo + hi) / 2 - (hi - lo) / 2 * cos(pi * (2 * i + 1) / 120) for i in range(60)]
    a, b = matrix(len(nodes), len(powers)), matrix(len(nodes), 1)
    for i, x in enumerate(nodes):
        for j, p in enumerate(powers):
            a[i, j] = weight(x) * x**p
        b[i] = weight(x) * f(x)
    return list(lu_solve(a.T * a, a.T * b))


def fit(name, f, powers, lo, hi, weight, bits):
    """Rounds coefficient after coefficient, fitting the remaining ones again each time."""
    done = []
    lo, hi = mpf(lo), mpf(hi)
    for i in range(len(powers)):
        rest = lambda x: f(x) - sum(c * x**p for c, p in done)
        c = least_squares(rest, powers[i:], lo, hi, weight)
        done.append((round_to(c[0], bits), powers[i]))
    worst = max(abs(weight(x) * (f(x) - sum(c * x**p for c, p in done)))
                for x in [lo + (hi - lo) * k / 999 for k in range(1000)] if x != 0)
    print(f"// {name}: largest weighted error {nstr(worst, 4)}")
    for c, p in done:
        print(f"  x^{p}: {literal(c, bits)}")


def literal(c, bits):
    return (float(c).hex() + ("f" if bits == 24 else "")).replace("0000000p", "p" if bits == 24 else "0000000p")


def split(name, value, bits_list):
    rest = value
    for i, bits in enumerate(bits_list):
        part = round_to(rest, bits)
        print(f"// {name} part {i}: {literal(part, 24 if bits <= 24 else 53)}")
        rest -= part


if __name__ == "__main__":
    ln2 = log(mpf(2))
    # exp, f32: e^r = 1 + r*(1 + r*(c2 + c3 r + ...)); relative error of e^r. The interval is a little wider than ln2/2.
    fit("exp f32", lambda r: (exp(r) - 1 - r) / r**2 if abs(r) > mpf(10) ** -20 else mpf(1) / 2, list(range(5)),
        -mpf("0.347"), mpf("0.347"), lambda r: r**2 / exp(r) + mpf(10) ** -12, 24)
    # log, f32: log(1+f) = f + f^2*(c0 + c1 f + ...), f in [-1/3, 1/3]; relative error.
    fit("log f32", lambda f: (log(1 + f) - f) / f**2 if abs(f) > mpf(10) ** -20 else -mpf(1) / 2, list(range(9)),
        -mpf(1) / 3, mpf(1) / 3, lambda f: f**2 / log(1 + f) if abs(f) > mpf(10) ** -15 else mpf(0), 24)
    # exp2, f64: 2^f = 1 + f*(c0 + c1 f + ...); relative error.
    fit("exp2 f64", lambda f: (mpf(2)**f - 1) / f if abs(f) > mpf(10) ** -25 else ln2, list(range(12)),
        -mpf(1) / 2, mpf(1) / 2, lambda f: f / mpf(2)**f, 53)
    # log2, f64: log((1+s)/(1-s)) = 2s + s*R(s^2), R(z) = z*(c0 + c1 z + ...).
    def log_r(z):
        if z < mpf(10) ** -30:
            return mpf(2) / 3
        s = sqrt(z)
        return (log((1 + s) / (1 - s)) / s - 2) / z
    fit("log2 f64", log_r, list(range(7)), mpf(0), mpf("0.02945"), lambda z: z + mpf(10) ** -9, 53)
    # sin, cos, f64 on |r| <= pi/4: r + r^3*(c0 + c1 z + ...), 1 - z/2 + z^2*(c0 + c1 z + ...), z = r^2.
    zmax = (pi / 4) ** 2 * mpf("1.0001")
    def sin_s(z):
        if z < mpf(10) ** -30:
            return -mpf(1) / 6
        r = sqrt(z)
        return (sin(r) / r - 1) / z
    def cos_c(z):
        if z < mpf(10) ** -15:
            return mpf(1) / 24
        return (cos(sqrt(z)) - 1 + z / 2) / z**2
    fit("sin f64", sin_s, list(range(6)), mpf(0), zmax, lambda z: z + mpf(10) ** -9, 53)
    fit("cos f64", cos_c, list(range(6)), mpf(0), zmax, lambda z: z**2 + mpf(10) ** -9, 53)
    split("ln2 f32", ln2, [15, 24])
    split("ln2 f64 hi/lo", ln2, [53])
    split("1/ln2 f64", 1 / ln2, [21, 53])
    split("1/ln2 f32", 1 / ln2, [24])
    split("pi/2", pi / 2, [30, 30, 30, 53])
    split("2/pi", 2 / pi, [53])
