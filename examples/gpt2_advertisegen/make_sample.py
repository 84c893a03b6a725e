"""Writes the synthetic sample: product tags and a sentence or three of copy, put together from the phrases below.

The vocabulary is household goods, and all of it was written for this project. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path

TRAIN_ROWS = 320
DEV_ROWS = 64

COLOURS = ("米白", "墨绿", "雾蓝", "暖灰", "赭石", "柠黄", "藕粉", "炭黑")
STYLES = ("北欧", "日式", "复古", "工业", "田园", "极简")
SCENES = ("书房", "厨房", "阳台", "客厅", "卧室", "露营地", "办公室")

OPENINGS = (
    "这款{style}风的{product}，一眼看去就很耐看。",
    "想给{scene}添一点{style}气息，{product}是不错的选择。",
    "{colour}的{product}安静地摆在{scene}里，清爽又大方。",
    "谁说{product}只能讲实用，它还带着{style}的味道。",
)
MATERIALS = (
    "主体选用{material}，摸上去{feel}，用久了也不容易变形。",
    "{material}的质地{feel}，擦一擦就干净如新。",
    "匠人挑选上等{material}，边角都仔细打磨，{feel}不硌手。",
)
BENEFITS = (
    "{benefit}，让每一天的小事都顺手一些。",
    "最贴心的是{benefit}，老人孩子也能放心使用。",
    "{benefit}，放在{scene}里刚刚好。",
)
CLOSINGS = ("送朋友也很体面。", "{colour}与木色相衬，怎么搭都好看。", "喜欢{style}的你不妨试试。")


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A kind of goods: what it may be made of, how that feels, and what it is good for."""

    name: str
    materials: tuple[str, ...]
    feels: tuple[str, ...]
    benefits: tuple[str, ...]


PRODUCTS = (
    Product(
        "台灯",
        ("榉木", "磨砂玻璃", "铝合金"),
        ("温润", "细腻"),
        ("光线柔和不刺眼", "灯臂可以随意转动", "三档亮度随手切换"),
    ),
    Product(
        "茶壶", ("紫砂", "白瓷", "耐热玻璃"), ("厚实", "光滑"), ("壶嘴出水利落", "把手隔热不烫手", "滤网细密不漏茶渣")
    ),
    Product(
        "收纳箱", ("藤编", "棉麻", "再生塑料"), ("结实", "轻便"), ("可以层层叠放", "折起来只有一指厚", "两侧提手省力")
    ),
    Product(
        "雨伞",
        ("防泼布", "玻璃纤维", "竹骨"),
        ("轻巧", "坚韧"),
        ("一按就能开合", "八根伞骨抗得住大风", "收起来能放进包里"),
    ),
    Product(
        "背包", ("帆布", "尼龙", "软木"), ("柔韧", "挺括"), ("分层口袋各有用处", "肩带加厚不勒肩", "底部防水不怕雨天")
    ),
    Product(
        "地毯", ("羊毛", "黄麻", "短绒"), ("蓬松", "柔软"), ("光脚踩上去暖暖的", "背面防滑不移位", "吸走脚步的声响")
    ),
    Product(
        "砂锅", ("陶土", "锂辉石瓷"), ("厚重", "匀净"), ("小火慢炖锁住香气", "锅盖带孔不易溢出", "冷热骤变也不开裂")
    ),
    Product(
        "书架", ("松木", "竹板", "钢管"), ("平整", "扎实"), ("不用工具就能装好", "层板高低可调", "窄窄一条不占地方")
    ),
)


def make_row(source: random.Random) -> dict[str, str]:
    """One row: `content` holds the tags, `summary` the copy that mentions them."""
    product = source.choice(PRODUCTS)
    words = {
        "product": product.name,
        "material": source.choice(product.materials),
        "feel": source.choice(product.feels),
        "colour": source.choice(COLOURS),
        "style": source.choice(STYLES),
        "scene": source.choice(SCENES),
    }
    benefit = source.choice(product.benefits)
    tags = (
        ("类型", words["product"]),
        ("材质", words["material"]),
        ("颜色", words["colour"]),
        ("风格", words["style"]),
        ("场景", words["scene"]),
        ("亮点", benefit),
    )
    parts = [source.choice(OPENINGS), source.choice(MATERIALS), source.choice(BENEFITS)]
    if source.random() < 0.5:
        parts.append(source.choice(CLOSINGS))
    summary = "".join(part.format(benefit=benefit, **words) for part in parts)
    return {"content": "*".join(f"{name}#{value}" for name, value in tags), "summary": summary}


def make_rows(count: int, seed: int) -> list[dict[str, str]]:
    """`count` rows, no two alike."""
    source = random.Random(seed)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < count:
        row = make_row(source)
        rows.setdefault(row["summary"], row)
    return list(rows.values())


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows as JSON lines, UTF-8."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="\n")


def write_sample(directory: Path, seed: int = 7) -> None:
    """Write train.json and dev.json; no row is in both."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = make_rows(TRAIN_ROWS + DEV_ROWS, seed)
    write_rows(directory / "train.json", rows[:TRAIN_ROWS])
    write_rows(directory / "dev.json", rows[TRAIN_ROWS:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the synthetic sample in AdvertiseGen's format.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path(__file__).resolve().parent / "data")
    write_sample(parser.parse_args().directory)
