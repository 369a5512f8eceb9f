"""Tool functions: what the composed tool prompts can ask for, written by hand.

In:  nothing. Out: `TOOL_FUNCTIONS`: typed parameters, values to ask about, and ways to ask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_CITIES = ("Lisbon", "Osaka", "Nairobi", "Toronto", "Lima", "Oslo", "Denver", "Hanoi", "Turin")
_PEOPLE = ("Maria Silva", "Jon Berg", "Aisha Khan", "Tom Reed", "Li Wei", "Noor Haddad")
_DATES = ("2024-03-18", "2025-07-01", "June 12th, 2023", "next Monday", "tomorrow", "2026-01-30")
_TOPICS = ("solar power", "football", "electric cars", "jazz", "inflation", "coral reefs", "chess")
_GOODS = ("running shoes", "a desk lamp", "green tea", "a laptop", "a raincoat", "headphones")
_MONEY = ("USD", "EUR", "JPY", "GBP", "CHF", "INR")
_UNITS = ("metric", "imperial", "Celsius", "Fahrenheit", "kilometers", "miles")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a function."""

    name: str
    type: str
    description: str
    values: tuple[str, ...]
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Function:
    """A function to call and ways to ask for it; requests name parameters in braces."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]


def _number(name: str, description: str, low: int, high: int) -> Parameter:
    spread = np.linspace(low, high, 11)
    return Parameter(name, "integer", description, tuple(str(int(value)) for value in spread))


def _float(name: str, description: str, low: float, high: float) -> Parameter:
    spread = np.linspace(low, high, 11)
    return Parameter(name, "float", description, tuple(f"{value:.4g}" for value in spread))


def _text(name: str, description: str, values: Sequence[str]) -> Parameter:
    return Parameter(name, "string", description, tuple(values))


def _optional(parameter: Parameter) -> Parameter:
    return Parameter(
        parameter.name, parameter.type, parameter.description, parameter.values, is_required=False
    )


_CITY = _text("city", "The name of the city.", _CITIES)
_DATE = _text("date", "The date to look at.", _DATES)
_UNIT = _optional(_text("unit", "The unit of measurement. Optional.", _UNITS))
_PERSON = _text("name", "Full name of the person.", _PEOPLE)

TOOL_FUNCTIONS = (
    Function(
        "weather.get_forecast",
        "Get the weather forecast for a city.",
        (_CITY, _number("days", "Number of days to forecast.", 1, 14), _UNIT),
        (
            "What will the weather be like in {city} over the next {days} days?",
            "Give me a {days}-day forecast for {city} in {unit} units.",
        ),
    ),
    Function(
        "get_current_time",
        "Retrieve the current time in a location.",
        (_CITY, _optional(_text("format", "12h or 24h.", ("12h", "24h")))),
        ("What time is it in {city} right now?", "Tell me the time in {city}, {format} format."),
    ),
    Function(
        "flight.search",
        "Search for flights between two cities on a date.",
        (
            _text("origin", "City of departure.", _CITIES),
            _text("destination", "City of arrival.", _CITIES),
            _DATE,
            _optional(_number("passengers", "Number of travellers.", 1, 6)),
        ),
        (
            "Find flights from {origin} to {destination} on {date}.",
            "I need {passengers} seats from {origin} to {destination}, leaving {date}.",
        ),
    ),
    Function(
        "hotel_booking.reserve",
        "Reserve a hotel room.",
        (
            _CITY,
            _text("check_in", "First night of the stay.", _DATES),
            _number("nights", "How many nights to stay.", 1, 12),
            _optional(_text("room_type", "Kind of room.", ("single", "double", "suite"))),
        ),
        (
            "Book a {room_type} room in {city} for {nights} nights from {check_in}.",
            "I am going to {city} on {check_in} and stay {nights} nights. Reserve a hotel.",
        ),
    ),
    Function(
        "currency_converter",
        "Convert an amount of money from one currency to another.",
        (
            _float("amount", "The amount to convert.", 5, 2500),
            _text("from_currency", "Code of the currency to convert from.", _MONEY),
            _text("to_currency", "Code of the currency to convert to.", _MONEY),
        ),
        (
            "How much is {amount} {from_currency} in {to_currency}?",
            "Convert {amount} {from_currency} to {to_currency}.",
        ),
    ),
    Function(
        "finance.loan_payment",
        "Calculate the monthly payment of a loan.",
        (
            _number("principal", "Amount borrowed.", 1000, 400000),
            _float("annual_rate", "Yearly interest rate in percent.", 0.5, 12),
            _number("years", "Term of the loan in years.", 1, 30),
        ),
        (
            "What is the monthly payment of a {principal} dollar loan at {annual_rate}% for "
            "{years} years?",
            "I borrow ${principal} over {years} years with {annual_rate}% interest. "
            "How much do I pay every month?",
        ),
    ),
    Function(
        "stock_price.lookup",
        "Look up the closing price of a share.",
        (_text("symbol", "Ticker symbol.", ("ABX", "NTRO", "QLM", "VEK", "ORN")), _DATE),
        ("What did {symbol} close at on {date}?", "Closing price of {symbol}, {date}, please."),
    ),
    Function(
        "calculate_triangle_area",
        "Calculate the area of a triangle from its base and height.",
        (
            _number("base", "Length of the base.", 2, 50),
            _number("height", "Height over the base.", 2, 50),
            _UNIT,
        ),
        (
            "Find the area of a triangle with a base of {base} and a height of {height}.",
            "A triangle has base {base} and height {height}. What is its area?",
        ),
    ),
    Function(
        "math.statistics",
        "Compute a statistic of a list of numbers.",
        (
            Parameter(
                "numbers",
                "array",
                "The list of numbers.",
                ("[3, 9, 12, 4]", "[1.5, 2.5, 8]", "[10, 20, 30, 40, 50]", "[7, 7, 1, 0, 3]"),
            ),
            _text("measure", "mean, median, mode or stdev.", ("mean", "median", "mode", "stdev")),
        ),
        ("What is the {measure} of {numbers}?", "Compute the {measure} for {numbers}."),
    ),
    Function(
        "physics.final_velocity",
        "Calculate the final velocity of an object under constant acceleration.",
        (
            _float("initial_velocity", "Velocity at the start in m/s.", 0, 40),
            _float("acceleration", "Acceleration in m/s^2.", 0.5, 9.81),
            _number("time", "Duration in seconds.", 1, 60),
        ),
        (
            "A car starts at {initial_velocity} m/s and accelerates at {acceleration} m/s^2 for "
            "{time} seconds. How fast is it then?",
            "Final velocity from {initial_velocity} m/s with {acceleration} m/s^2 after {time} s?",
        ),
    ),
    Function(
        "news.search",
        "Search for news articles on a topic.",
        (
            _text("topic", "What the articles are about.", _TOPICS),
            _number("days", "How many days back to look.", 1, 30),
            _optional(_text("language", "Language of the articles.", ("en", "es", "fr", "de"))),
        ),
        (
            "Find news about {topic} from the last {days} days.",
            "What has been written on {topic} in the past {days} days?",
        ),
    ),
    Function(
        "send_email",
        "Send an email to a person.",
        (
            _PERSON,
            _text("subject", "Subject line.", ("Meeting notes", "Invoice", "Thank you", "Plans")),
            _text("body", "The message.", ("See you there.", "Please find it attached.", "Hello!")),
        ),
        ('Write to {name} with the subject "{subject}" and say "{body}"',),
    ),
    Function(
        "calendar.create_event",
        "Create an event in the calendar.",
        (
            _text("title", "Title of the event.", ("Dentist", "Team lunch", "Project review")),
            _DATE,
            _text("start_time", "When it begins.", ("09:00", "13:30", "4 pm", "18:15")),
            _optional(_number("duration", "Length in minutes.", 15, 180)),
        ),
        (
            'Put "{title}" into my calendar on {date} at {start_time}.',
            'Schedule "{title}" for {date}, {start_time}, {duration} minutes.',
        ),
    ),
    Function(
        "recipe.find",
        "Find recipes by ingredients and diet.",
        (
            Parameter(
                "ingredients",
                "array",
                "Ingredients at hand.",
                ('["rice", "beans"]', '["eggs", "spinach", "feta"]', '["chicken", "lemon"]'),
            ),
            _optional(_text("diet", "Dietary restriction.", ("vegan", "vegetarian", "none"))),
            _optional(_number("max_minutes", "Longest cooking time.", 10, 120)),
        ),
        (
            "I have {ingredients}. What can I cook in at most {max_minutes} minutes?",
            "Find a {diet} recipe with {ingredients}.",
        ),
    ),
    Function(
        "shop.search_products",
        "Search for products in an online shop.",
        (
            _text("query", "What to look for.", _GOODS),
            _number("max_price", "Highest price.", 10, 900),
            _optional(_text("sort_by", "Order of results.", ("price", "rating", "newest"))),
        ),
        (
            "Look for {query} under {max_price} dollars.",
            "Show me {query} for at most ${max_price}, sorted by {sort_by}.",
        ),
    ),
    Function(
        "employee_records.get",
        "Get the record of an employee from the database.",
        (
            _PERSON,
            _number("employee_id", "Number of the employee.", 100, 99999),
            Parameter(
                "fields",
                "array",
                "Fields to return.",
                ('["salary"]', '["department", "start_date"]', '["email", "manager"]'),
                is_required=False,
            ),
        ),
        ("Get {fields} of {name}, employee {employee_id}.",),
    ),
    Function(
        "distance.between",
        "Calculate the distance between two places.",
        (
            _text("from_place", "Where to start.", _CITIES),
            _text("to_place", "Where to end.", _CITIES),
            _UNIT,
        ),
        ("How far is it from {from_place} to {to_place} in {unit}?",),
    ),
    Function(
        "translate_text",
        "Translate a text into another language.",
        (
            _text("text", "The text.", ("Good morning", "Where is the station?", "I am hungry")),
            _text("target_language", "Language to translate to.", ("Spanish", "Swahili", "Thai")),
        ),
        (
            'Translate "{text}" into {target_language}.',
            'How do you say "{text}" in {target_language}?',
        ),
    ),
)
