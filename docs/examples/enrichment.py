"""Price orders by a global store of the catalogue: ``txstores worker enrichment:app --config worker.properties``.

Each worker has the whole catalogue, so orders need not be partitioned by product. An order of an unknown product is a
dead letter. ``python enrichment.py`` shows it with a few orders. Needs the extra ``msgspec``.
"""

from __future__ import annotations

from dataclasses import dataclass

from stores.changelog import Record
from stores.records import STR, KeyValue
from stores.records.serdes import MsgspecJson
from stores.tasks import DeadLetterTopic, GlobalStore, TaskContext
from stores.testing import AppDriver
from stores.worker import Application, Processor, Topic


@dataclass(frozen=True)
class Product:
    """An entry of the catalogue."""

    name: str
    cents: int


@dataclass(frozen=True)
class Order:
    """An order of one product."""

    product: str
    quantity: int


@dataclass(frozen=True)
class Priced:
    """An order with its price."""

    product: str
    cents: int


PRODUCTS = Topic("products", key=STR, value=MsgspecJson(Product))
ORDERS = Topic("orders", key=STR, value=MsgspecJson(Order))
PRICED = Topic("priced", key=STR, value=MsgspecJson(Priced))
FAILED = DeadLetterTopic("orders-failed")
CATALOGUE = KeyValue(key=STR, value=MsgspecJson(Product), name="catalogue")


def price(record: Record[str, Order], context: TaskContext) -> None:
    """Forward an order with the name and the price of its product."""
    if record.value is None:
        return
    product = context.global_store(CATALOGUE).get(record.value.product)
    if product is None:
        raise LookupError(f"no product {record.value.product!r} in the catalogue")
    context.forward(PRICED, record.key, Priced(product.name, product.cents * record.value.quantity))


app = Application(
    "enrichment",
    Processor([ORDERS], price, on_error=FAILED),
    topics={PRODUCTS: 1, ORDERS: 4, PRICED: 4, FAILED.topic: 1},
    global_stores={"catalogue": GlobalStore(PRODUCTS, CATALOGUE)},
)


if __name__ == "__main__":
    with AppDriver(app) as driver:
        driver.pipe(PRODUCTS, "p1", Product("tea", 450))
        driver.pipe(PRODUCTS, "p2", Product("cup", 900))
        for number, chosen, pieces in (("o1", "p1", 2), ("o2", "p3", 1), ("o3", "p2", 3)):
            driver.pipe(ORDERS, number, Order(chosen, pieces))
        print([(each.key, each.value) for each in driver.read(PRICED)])
        print("failed:", [each.key for each in driver.read(FAILED.topic)])
